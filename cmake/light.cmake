# shardproof-light: those sources that need no LibTorch, which compile in less than a minute. ./shardproof lint and
# ./shardproof judge build it in a folder of its own where the program is not there.
file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} src/base/*.cpp src/mesh/*.cpp src/model/config*.cpp
  src/parallel/tp/plan*.cpp sim/case/*.cpp sim/case/scenario/*.cpp sim/case/record/*.cpp sim/judge/diff/*.cpp
  sim/judge/evidence/*.cpp sim/judge/explain/*.cpp sim/judge/verdict/*.cpp sim/uses/recorded/*.cpp sim/lint/*.cpp
  sim/report/*.cpp)
list(REMOVE_ITEM sources sim/judge/verdict/result_file.cpp sim/report/compare_runs.cpp sim/report/amounts.cpp)
list(APPEND sources src/tensor/tensor_view.cpp src/tensor/safetensors_header.cpp src/tensor/safetensors_reader.cpp
  src/model/family.cpp src/model/moe/router_rule.cpp sim/run/case_check.cpp
  sim/cli/arguments.cpp sim/cli/command_options.cpp sim/cli/judge_files.cpp sim/cli/judge_output.cpp
  sim/cli/help.cpp sim/cli/option_values.cpp sim/cli/outputs.cpp sim/cli/standard_output.cpp sim/cli/wait_note.cpp)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)  # the installed library; the program itself compiles LibTorch's copy
add_executable(shardproof-light sim/light_main.cpp ${sources})
foreach(source ${sources})  # four files for the compiler, so that it instantiates most templates once
  set(group rest)
  if(source MATCHES "^(src|sim/judge|sim/case)/")
    string(MAKE_C_IDENTIFIER ${CMAKE_MATCH_1} group)
  endif()
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
endforeach()
set_target_properties(shardproof-light PROPERTIES UNITY_BUILD_MODE GROUP)
target_include_directories(shardproof-light PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(shardproof-light PRIVATE fmt::fmt yaml-cpp nlohmann_json::nlohmann_json CLI11::CLI11
  Threads::Threads)
