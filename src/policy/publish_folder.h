// Gives a folder its final name when all of its contents are on the disk.
#pragma once

#include <functional>
#include <string>

namespace shardproof {

// renameat2(2) of two paths: returns 0, or -1 with errno.
using RenameCall = std::function<int(const char* from, const char* to, unsigned flags)>;
int rename_with_flags(const char* from, const char* to, unsigned flags);

// Renames the folder `written` to `name`. A folder that has the name is replaced atomically, and
// deleted. Some file systems (NFS) know rename without flags only: there a free name is taken, and
// a taken one is Error(kBadInput), as a folder could be replaced in two steps only. Throws
// Error(kBadInput), with both folders unchanged, for any other failure.
void publish_folder(const std::string& written, const std::string& name,
                    const RenameCall& rename = rename_with_flags);

}  // namespace shardproof
