# The plugin of CUDA kernels, libshardproof_cuda.so: built where nvcc and a CUDA LibTorch are there.
#   -DSHARDPROOF_CUDA_KERNELS=AUTO      build it when possible (default)
#   -DSHARDPROOF_CUDA_KERNELS=REQUIRED  stop when it is not
#   -DSHARDPROOF_CUDA_KERNELS=OFF       never
#   -DSHARDPROOF_CUDA_ARCH=native       what nvcc's -arch is given; default all-major
# nvcc is called for one file; CMake's CUDA language would ask for a working toolkit in every build.
set(SHARDPROOF_CUDA_KERNELS AUTO CACHE STRING "The CUDA kernels: AUTO, REQUIRED or OFF")
set_property(CACHE SHARDPROOF_CUDA_KERNELS PROPERTY STRINGS AUTO REQUIRED OFF)
set(SHARDPROOF_CUDA_ARCH all-major CACHE STRING "nvcc -arch")

function(shardproof_cuda_plugin)
  if(SHARDPROOF_CUDA_KERNELS STREQUAL "OFF")
    return()
  endif()
  find_program(SHARDPROOF_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  find_path(SHARDPROOF_CUDA_INCLUDE cuda_runtime.h HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
  set(libraries ${SHARDPROOF_TORCH}/lib/libtorch_cuda.so ${SHARDPROOF_TORCH}/lib/libc10_cuda.so)
  shardproof_cuda_missing(missing "CUDA kernels" SHARDPROOF_CUDA_KERNELS
    "SHARDPROOF_NVCC;nvcc;SHARDPROOF_CUDA_INCLUDE;cuda_runtime.h" ${libraries})
  if(missing)
    return()
  endif()

  set(folder ${CMAKE_SOURCE_DIR}/src/parallel/tp)
  set(object ${CMAKE_BINARY_DIR}/add_rms_norm_kernel.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${SHARDPROOF_NVCC} -std=c++17 -O3 -arch=${SHARDPROOF_CUDA_ARCH} -ccbin ${CMAKE_CXX_COMPILER}
      -Xcompiler -fPIC -I${CMAKE_SOURCE_DIR}/src -c ${folder}/add_rms_norm_kernel.cu -o ${object}
    DEPENDS ${folder}/add_rms_norm_kernel.cu ${folder}/add_rms_norm_kernel.h ${folder}/add_rms_norm_row.cuh
    COMMENT "nvcc add_rms_norm_kernel.cu" VERBATIM)
  add_library(shardproof_cuda SHARED ${folder}/cuda_kernels_plugin.cpp ${object})
  set_target_properties(shardproof_cuda PROPERTIES DEFINE_SYMBOL "" UNITY_BUILD OFF)
  target_include_directories(shardproof_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(shardproof_cuda SYSTEM PRIVATE ${SHARDPROOF_CUDA_INCLUDE})
  # LibTorch's CUDA runtime, the same for streams and kernels: found when the plugin is loaded.
  target_link_libraries(shardproof_cuda PRIVATE shardproof_torch shardproof_fmt shardproof_warnings ${libraries})
  target_link_options(shardproof_cuda PRIVATE -Wl,--allow-shlib-undefined)
  target_precompile_headers(shardproof_cuda REUSE_FROM shardproof_pch)
endfunction()
