# Compiler settings of moxie's own targets. Nothing here reaches a project that uses moxie.

if(PROJECT_IS_TOP_LEVEL)
  # The build tree keeps commands apart from libraries: `moxie` names a library target and a command.
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(MOXIE_CCACHE_PROGRAM ccache)
    if(MOXIE_CCACHE_PROGRAM)
      set(CMAKE_CXX_COMPILER_LAUNCHER "${MOXIE_CCACHE_PROGRAM}")
    endif()
  endif()
endif()

# moxie_compiler_settings(<target>): language level, visibility, warnings.
function(moxie_compiler_settings target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  # A designated initialiser that names some fields leaves the others at their defaults on purpose.
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms of g++ 12 once it inlines the standard library: string concatenation as an overlapping copy, and
    # every alternative of a std::variant as uninitialised. clang-tidy looks for the real ones.
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-maybe-uninitialized)
  endif()
  if(MOXIE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
