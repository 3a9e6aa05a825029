"""Writes images.npz and calibration.npz, inputs of digits.onnx, for docs/commands.md."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
for source, target in (("held_out", "images"), ("calibration", "calibration")):
    images = np.load(HERE / f"digits_{source}.npz")["images"]
    # Pixels are 0 to 16 in the files, and 0 to 1 in the model.
    scaled = images.reshape(-1, 1, 8, 8).astype("float32") / 16
    np.savez(f"{target}.npz", images=scaled)
