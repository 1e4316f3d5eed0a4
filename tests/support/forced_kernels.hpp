// SPDX-License-Identifier: Apache-2.0
// Plans of a scope take the named kernels, whatever this machine would choose.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <string>

namespace moxie::test {

class ForcedKernels {
 public:
  explicit ForcedKernels(const std::string& start) {
    EXPECT_EQ(::setenv("MOXIE_FORCE", start.c_str(), 1), 0);
  }
  ~ForcedKernels() { ::unsetenv("MOXIE_FORCE"); }
  ForcedKernels(const ForcedKernels&) = delete;
  ForcedKernels& operator=(const ForcedKernels&) = delete;
};

// For tests that look at rows one after another in a blob, or at this kernel's own numbers.
class PortableKernel : public ForcedKernels {
 public:
  PortableKernel() : ForcedKernels("cpu.portable") {}
};

}  // namespace moxie::test
