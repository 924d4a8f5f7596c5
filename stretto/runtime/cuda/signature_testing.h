// Compares our declarations of a library's functions with those of its header, at compile time.
#pragma once

#include <type_traits>

namespace stretto::cuda {

// Two declarations of one parameter: the same kind of thing, as wide, as constant.
template <typename Ours, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using A = std::remove_pointer_t<Ours>;
    using B = std::remove_pointer_t<Theirs>;
    return std::is_const_v<A> == std::is_const_v<B> && std::is_class_v<A> == std::is_class_v<B> &&
           std::is_void_v<A> == std::is_void_v<B> && std::is_pointer_v<A> == std::is_pointer_v<B>;
  } else {
    return !std::is_pointer_v<Ours> && !std::is_pointer_v<Theirs> &&
           std::is_enum_v<Ours> == std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  }
}
template <typename R, typename... A, typename S, typename... B>
constexpr bool same_signature(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return alike<R, S>() && (alike<A, B>() && ...);
  }
}

}  // namespace stretto::cuda
