# What the layers use privately. A user of the installed library needs only the OpenMP runtime of it.

find_path(MOXIE_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
add_library(moxie_xxhash INTERFACE)
target_include_directories(moxie_xxhash SYSTEM INTERFACE "${MOXIE_XXHASH_INCLUDE_DIR}")

find_package(nlohmann_json REQUIRED)

# The fuzz build has no OpenMP: without it the pragmas are void, and one input always takes one path.
if(NOT MOXIE_FUZZ)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
