// SPDX-License-Identifier: Apache-2.0
/*!
 * \file check.h
 * \brief A minimal test framework for the driver's tests.
 *
 * TEST(name) { ... } registers a test, CHECK(condition) records a failure and goes on, and RunTests
 * runs the tests whose name contains one of the arguments (all of them without arguments).
 */
#ifndef TESTS_CHECK_H_
#define TESTS_CHECK_H_

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace check {

/*! \brief A registered test. */
struct Test {
  const char* name;
  void (*function)();
};

/*! \brief All tests, in the order of the source. */
inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

/*! \brief Failures so far; threads may add to them. */
inline std::atomic<int>& Failures() {
  static std::atomic<int> failures{0};
  return failures;
}

/*! \brief Adds a test when the executable starts. */
struct Registration {
  Registration(const char* name, void (*function)()) { Tests().push_back({name, function}); }
};

/*! \brief Records a failure. */
inline void Fail(const char* file, int line, const std::string& what) {
  ++Failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

/*! \brief Records a failure unless both values are equal. */
template <typename Got, typename Want>
void Equal(const char* file, int line, const char* what, const Got& got, const Want& want) {
  if (got == want) return;
  std::ostringstream message;
  message << what << " is " << got << " instead of " << want;
  Fail(file, line, message.str());
}

/*! \brief Whether `got` is within the tolerances of `want`; NaN matches NaN. */
inline bool Near(double got, double want, double rtol = 1e-5, double atol = 1e-5) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  return got == want || std::fabs(got - want) <= atol + rtol * std::fabs(want);
}

/*! \brief Runs the tests that the arguments select; returns the exit code of main. */
inline int RunTests(int count, char** arguments) {
  int run = 0;
  for (const Test& test : Tests()) {
    bool selected = count < 2;
    for (int i = 1; i < count; ++i) {
      selected = selected || std::strstr(test.name, arguments[i]) != nullptr;
    }
    if (!selected) continue;
    ++run;
    int before = Failures();
    try {
      test.function();
    } catch (const std::exception& error) {
      Fail(__FILE__, __LINE__, std::string(test.name) + " threw: " + error.what());
    }
    std::printf("%s %s\n", Failures() == before ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
  }
  std::printf("%d tests, %d failures\n", run, Failures().load());
  return run == 0 || Failures() != 0;
}

}  // namespace check

/*! \brief Defines and registers a test. */
#define TEST(name)                                                   \
  static void name();                                                \
  static const check::Registration name##_registration(#name, name); \
  static void name()

/*! \brief Records a failure unless the condition holds. */
#define CHECK(condition) \
  (static_cast<bool>(condition) ? void() : check::Fail(__FILE__, __LINE__, #condition))

/*! \brief Records a failure, with both values, unless they are equal. */
#define CHECK_EQ(got, want) check::Equal(__FILE__, __LINE__, #got, got, want)

#endif  // TESTS_CHECK_H_
