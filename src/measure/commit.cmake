# Writes HEADER with the commit of SOURCE and whether its files differ from it; "unknown" without git, or where SOURCE
# only lies inside another project's repository.
cmake_minimum_required(VERSION 3.25)
set(commit unknown)
set(dirty false)

# Runs git in SOURCE. Leaves the answer in `variable`, or "unknown".
function(ask variable)
  set(${variable} unknown PARENT_SCOPE)
  if(GIT)
    execute_process(COMMAND "${GIT}" -C "${SOURCE}" ${ARGN}
      RESULT_VARIABLE failed OUTPUT_VARIABLE answer ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed)
      set(${variable} "${answer}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

ask(top rev-parse --show-toplevel)
file(REAL_PATH "${SOURCE}" source)
if(top STREQUAL source)
  ask(commit rev-parse HEAD)
  ask(changes status --porcelain --untracked-files=no)
  if(changes)
    set(dirty true)
  endif()
endif()

file(CONFIGURE OUTPUT "${HEADER}" @ONLY CONTENT
"// SPDX-License-Identifier: Apache-2.0
// The commit that was built; written by src/measure/commit.cmake.
#pragma once

namespace moxie {
inline constexpr const char* kCommit = \"@commit@\";
inline constexpr bool kDirty = @dirty@;
}  // namespace moxie
")
