// Between GGUF's block formats and the planes that the kernels read: lossless, group by group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace forerun {

// GGUF's block: how many columns and how many bytes.
struct FileBlock {
  std::size_t cols, bytes;
};
FileBlock file_block(Kind kind);

// Fills one block of 16 channels: `rows` (1..16) rows of GGUF data, the rest zero.
void pack_block(Kind kind, const std::uint8_t* data, std::size_t row_stride, std::size_t rows, std::size_t cols, std::size_t meta_bytes,
                std::uint8_t* block, std::size_t block_bytes);

// One channel of a packed block as fp32.
void unpack_channel(Kind kind, const std::uint8_t* block, std::size_t meta_bytes, std::size_t cols, std::size_t lane, float* out);

}  // namespace forerun
