// SPDX-License-Identifier: Apache-2.0
// Marks what the shared library exports; everything else has hidden visibility.
#pragma once

#if defined(__GNUC__) && defined(MOXIE_SHARED_BUILD)
#define MOXIE_API __attribute__((visibility("default")))
#else
#define MOXIE_API
#endif
