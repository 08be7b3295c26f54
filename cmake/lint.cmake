# shardproof-lint: those sources that need no LibTorch, which compile in less than a minute. ./shardproof lint builds it
# in a folder of its own where the program is not there yet.
file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} src/base/*.cpp src/mesh/*.cpp src/model/config*.cpp
  src/model/family.cpp src/parallel/tp/plan*.cpp sim/case/*.cpp sim/case/scenario/*.cpp sim/run/case_check.cpp
  sim/lint/*.cpp)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
add_executable(shardproof-lint sim/lint_main.cpp ${sources})
foreach(source ${sources})  # names in unnamed namespaces are unique in a folder, as in the libraries
  get_filename_component(folder ${source} DIRECTORY)
  string(MAKE_C_IDENTIFIER ${folder} group)
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
endforeach()
set_target_properties(shardproof-lint PROPERTIES UNITY_BUILD_MODE GROUP)
target_include_directories(shardproof-lint PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(shardproof-lint PRIVATE FMT_HEADER_ONLY)
target_link_libraries(shardproof-lint PRIVATE yaml-cpp nlohmann_json::nlohmann_json CLI11::CLI11 Threads::Threads)
