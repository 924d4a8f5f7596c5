// Whether a model fits the host's memory, asked before anything is loaded, and how large its cache
// is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/model/transformer/model_shape.h"

namespace stretto {

// Bytes that the kernel would give out without swapping; the largest size_t where it does not say.
std::size_t available_host_memory();

// UserError unless the weights and caches of all CPU ranks fit what is available.
void check_host_memory(const ModelShape& shape);

// A cache of pages, as many as are worth having: no more than the largest step's sequences at full
// length use.
struct CacheSize {
  std::int64_t num_pages = 0;
  std::size_t page_bytes = 0;  // on all ranks and layers
  std::size_t allowed = 0;     // bytes
  // A rank's: what else its memory is for, and what steps would take if their buffers did not
  // share it.
  std::size_t weight_bytes = 0, work_bytes = 0, kept_bytes = 0, unshared_bytes = 0;
};
// On CPU ranks in so many bytes; 0: the smaller of 4 GiB and a quarter of what is available, and
// then with_few_digits.
CacheSize size_of_cache(const ModelShape& shape, std::size_t bytes);

// The largest number of pages up to this with five binary digits before its zeros: memory that is
// free differs a little from start to start, and what one has proved and compiled the next finds.
std::int64_t with_few_digits(std::int64_t pages);
std::size_t page_bytes(const ModelShape& shape);   // on all ranks and layers
std::int64_t most_pages(const ModelShape& shape);  // that are worth having

}  // namespace stretto
