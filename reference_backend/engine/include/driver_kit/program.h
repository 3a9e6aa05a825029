/* SPDX-License-Identifier: Apache-2.0 */
/* Where releases before 0.5 had it. */
#include "../../backend/include/driver_kit/program.h"
