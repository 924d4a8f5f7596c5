// Where tests of the chooser stand: an empty cache, and the machine of two GPUs.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "stretto/predict/machine.h"

namespace stretto {

class ChooseTest : public testing::Test {
 protected:
  ChooseTest() {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    cache_ = std::filesystem::temp_directory_path() /
             ("stretto-choose-" + name + std::to_string(::getpid()));
    setenv("STRETTO_CACHE_DIR", cache_.c_str(), 1);
  }
  ~ChooseTest() override {
    unsetenv("STRETTO_CACHE_DIR");
    std::filesystem::remove_all(cache_);
  }

  std::filesystem::path cache_;
  predict::Machine machine_ = predict::find_machine("h200x2");
};

}  // namespace stretto
