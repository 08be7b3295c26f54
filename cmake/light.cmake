# shardproof-light: those sources that need no LibTorch, which compile in less than a minute. ./shardproof lint and
# ./shardproof judge build it in a folder of its own where the program is not there; the wheel of the Python package
# holds it, compiled for an older glibc (python/program/light_wheel.py).
file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} src/base/*.cpp src/mesh/*.cpp src/model/config*.cpp
  src/parallel/tp/plan*.cpp sim/case/*.cpp sim/case/scenario/*.cpp sim/case/record/*.cpp sim/judge/diff/*.cpp
  sim/judge/evidence/*.cpp sim/judge/explain/*.cpp sim/judge/verdict/*.cpp sim/uses/recorded/*.cpp
  sim/uses/logprobs/*.cpp sim/lint/*.cpp sim/report/*.cpp)
list(REMOVE_ITEM sources src/base/freed_memory.cpp sim/judge/verdict/result_file.cpp sim/report/compare_runs.cpp sim/report/amounts.cpp)
list(APPEND sources src/tensor/tensor_view.cpp src/tensor/safetensors_header.cpp src/tensor/safetensors_reader.cpp
  src/model/family.cpp src/model/moe/router_rule.cpp sim/run/case_check.cpp
  sim/uses/proofs/built_in_rows.cpp
  sim/cli/arguments.cpp sim/cli/command_options.cpp sim/cli/python_commands.cpp sim/cli/report_command.cpp
  sim/cli/outputs.cpp sim/cli/uses/judge_files.cpp sim/cli/uses/judge_output.cpp sim/cli/uses/logprobs_command.cpp)
set(SHARDPROOF_YAML_CPP "" CACHE PATH "Sources of yaml-cpp, which are compiled in, with the headers of the other \
libraries: for a compiler that cannot link the installed ones. Empty: the installed libraries")
set(SHARDPROOF_HEADERS "" CACHE PATH "With SHARDPROOF_YAML_CPP: the folder that holds fmt, nlohmann and CLI")
find_package(Threads REQUIRED)
if(SHARDPROOF_YAML_CPP)
  file(GLOB yaml_sources ${SHARDPROOF_YAML_CPP}/src/*.cpp)
  add_library(light_libraries STATIC cmake/fmt.cpp ${yaml_sources})
  target_include_directories(light_libraries SYSTEM PUBLIC ${SHARDPROOF_YAML_CPP}/include ${SHARDPROOF_HEADERS})
  target_compile_definitions(light_libraries PUBLIC YAML_CPP_STATIC_DEFINE)
  set_target_properties(light_libraries PROPERTIES UNITY_BUILD OFF)
else()
  find_package(yaml-cpp REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(fmt REQUIRED)  # the installed library; the program itself compiles LibTorch's copy
  add_library(light_libraries INTERFACE)
  target_link_libraries(light_libraries INTERFACE fmt::fmt yaml-cpp nlohmann_json::nlohmann_json CLI11::CLI11)
endif()
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
target_link_libraries(shardproof-light PRIVATE light_libraries Threads::Threads)
target_link_options(shardproof-light PRIVATE -s)  # nobody debugs it, and a wheel holds it
set_source_files_properties(sim/light_main.cpp PROPERTIES COMPILE_DEFINITIONS
  SHARDPROOF_VERSION="${PROJECT_VERSION}")
