# What ./shardproof package puts into its wheel: `cmake --install build/release --component wheel --prefix DIR`. The
# program finds LibTorch in the torch package beside its own, other shared libraries in lib/.
function(shardproof_wheel_files)
  set(programs shardproof-bin)
  foreach(plugin shardproof_nccl shardproof_cuda)
    if(TARGET ${plugin})
      list(APPEND programs ${plugin})
    endif()
  endforeach()
  set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/lib:$ORIGIN/../torch/lib")
  install(TARGETS shardproof-bin RUNTIME_DEPENDENCY_SET carried RUNTIME DESTINATION . COMPONENT wheel)
  list(REMOVE_ITEM programs shardproof-bin)
  if(programs)  # loaded on demand, with what LibTorch brings
    install(TARGETS ${programs} LIBRARY DESTINATION . COMPONENT wheel)
  endif()
  # Every Linux with this glibc or a later one has these; the others are carried.
  install(RUNTIME_DEPENDENCY_SET carried
    PRE_EXCLUDE_REGEXES "^lib(torch|c10)" "^ld-linux" "^lib(c|m|dl|rt|pthread|util|gcc_s|stdc\\+\\+)\\.so"
    LIBRARY DESTINATION lib COMPONENT wheel)
  install(DIRECTORY scenarios reports docs DESTINATION . COMPONENT wheel PATTERN __pycache__ EXCLUDE)
  install(DIRECTORY golden/hf DESTINATION golden COMPONENT wheel PATTERN __pycache__ EXCLUDE)
  install(FILES LICENSE NOTICE DESTINATION . COMPONENT wheel)
  # The terms of what the program is built with, as Debian states them for each package.
  foreach(package libyaml-cpp-dev libfmt-dev nlohmann-json3-dev libcli11-dev libgloo-dev libboost-dev
      libsodium-dev)
    install(FILES /usr/share/doc/${package}/copyright DESTINATION licenses RENAME ${package} COMPONENT wheel)
  endforeach()
endfunction()
