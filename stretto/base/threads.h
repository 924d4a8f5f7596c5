// How threads are made, of which a user may have few (ulimit -u): one for a purpose of its own is
// missed by name, those that only share work are done without.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>

namespace stretto {

// UserError "no thread for WHAT" where the system makes none.
std::thread start_thread(const std::string& what, std::function<void()> body);

// At least 1.
std::size_t num_processors();

// work(0) to work(count - 1), on this thread and at most so many others that they are num_threads.
// What one of them throws is thrown on, and ends all soon.
void side_by_side(std::size_t count, std::size_t num_threads,
                  const std::function<void(std::size_t)>& work);

}  // namespace stretto
