// What stands for a cubin: a shared object of the host, after a head that says how long it is.
#pragma once

#include <string>

namespace stretto::simulator {

std::string image_of(const std::string& object);
// A handle for dlsym, the same for the same image; null for what image_of did not make.
void* open_image(const void* image);

}  // namespace stretto::simulator
