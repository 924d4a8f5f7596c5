// Where NVIDIA's libraries lie when they were installed as Python packages.
#pragma once

#include <filesystem>
#include <vector>

namespace stretto::cuda {

// The directories that make up the package `nvidia` of the python3 on the path, which may be
// several; none where there is no such python3 or package. Starts a process.
std::vector<std::filesystem::path> python_packages();

}  // namespace stretto::cuda
