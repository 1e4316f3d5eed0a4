// SPDX-License-Identifier: Apache-2.0
// From BEGIN to the end of the file, functions may use the named instruction sets. END stands last:
// g++ instantiates templates at the end of the file, with the options that hold there, and so keeps
// the region open; clang must see it closed. Inline functions of other headers are included before
// BEGIN: the linker may keep the copy of any region.
#pragma once

#define MOXIE_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define MOXIE_TARGET_BEGIN(features) \
  MOXIE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define MOXIE_TARGET_END MOXIE_PRAGMA(clang attribute pop)
#else
#define MOXIE_TARGET_BEGIN(features) \
  MOXIE_PRAGMA(GCC push_options)     \
  MOXIE_PRAGMA(GCC target(features))
#define MOXIE_TARGET_END MOXIE_PRAGMA(GCC pop_options)
#endif
