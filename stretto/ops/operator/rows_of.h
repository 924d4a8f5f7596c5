// Where a desc has its `world_size` and its `m`: among its own fields, or in the `shape` that it
// has with others of its kind. For templates over the descs of products.
#pragma once

namespace stretto {

template <typename Desc>
const auto& rows_of(const Desc& d) {
  if constexpr (requires { d.shape; }) {
    return d.shape;
  } else {
    return d;
  }
}

}  // namespace stretto
