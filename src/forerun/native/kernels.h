// What the part compiled once per instruction set looks like from outside: plain structs and function pointers only.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace forerun {

// How the integers of a group (32 columns of 16 channels) are stored. Vector j (of 8) holds, for each channel, columns 4j..4j+3.
enum class Codes : uint8_t {
  dense,   // no integers: the columns one after the other, 16 channels each
  two,     // 128 bytes: field f of vector i is vector 4i + f
  three,   // two, then 64 bytes with the third bit: bit f belongs to vector f
  four,    // 256 bytes: low nibbles of vector i are vector i, high ones vector i + 4
  five,    // four, then 64 bytes with the fifth bit
  six,     // four, then 128 bytes with the upper two bits, as in `two`
  eight,   // 512 bytes
  table,   // four, each an index into the table of IQ4_NL
};

// How scales (and minimums) are stored, for each block of 16 channels.
enum class Scales : uint8_t {
  none,
  half,       // per group: 16 fp16 scales
  half_min,   // per group: 16 fp16 scales, 16 fp16 minimums (added)
  super_min,  // per 256 columns: 16 fp16 d, 16 fp16 dmin, three words of five 6-bit values (8 scales, 8 minimums; the last spread)
  super_16,   // per 256 columns: 16 fp16 d, then 16 times 16 int8 scales of 16 columns each
  super_32,   // per 256 columns: 16 fp16 d, then 8 times 16 int8 scales of 32 columns each
  super_4,    // per 256 columns: 16 fp16 d, 16 fp16 dmin, 16 times 16 bytes: scale in the low nibble, minimum in the high one
};

struct Form {
  Codes codes;
  Scales scales;
  uint8_t zero_shift;  // the stored integer is the weight's plus 1 << zero_shift; 0: plus nothing
};

constexpr size_t code_bytes(Codes c) {
  constexpr size_t bytes[] = {0, 128, 192, 256, 320, 384, 512, 256};
  return bytes[static_cast<size_t>(c)];
}

constexpr size_t scale_bytes(Scales s, size_t groups) {
  return s == Scales::half        ? groups * 32
         : s == Scales::half_min  ? groups * 64
         : s == Scales::super_min ? groups / 8 * 256
         : s == Scales::super_16  ? groups / 8 * 288
         : s == Scales::super_32  ? groups / 8 * 160
         : s == Scales::super_4   ? groups / 8 * 320
                                  : 0;
}

constexpr size_t kind_slots = 32;

constexpr Form form_of(uint32_t kind) {
  switch (kind) {
    case 2: return {Codes::four, Scales::half, 3};        // Q4_0
    case 3: return {Codes::four, Scales::half_min, 0};    // Q4_1
    case 6: return {Codes::five, Scales::half, 4};        // Q5_0
    case 7: return {Codes::five, Scales::half_min, 0};    // Q5_1
    case 8: return {Codes::eight, Scales::half, 7};       // Q8_0
    case 10: return {Codes::two, Scales::super_4, 0};     // Q2_K
    case 11: return {Codes::three, Scales::super_16, 2};  // Q3_K
    case 12: return {Codes::four, Scales::super_min, 0};  // Q4_K
    case 13: return {Codes::five, Scales::super_min, 0};  // Q5_K
    case 14: return {Codes::six, Scales::super_16, 5};    // Q6_K
    case 20: return {Codes::table, Scales::half, 7};      // IQ4_NL
    case 23: return {Codes::table, Scales::super_32, 7};  // IQ4_XS
    default: return {Codes::dense, Scales::none, 0};      // F32, F16, BF16
  }
}

// The table of IQ4_NL plus 128.
constexpr uint8_t table_values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

// One row in one group of a tile of R rows; each field holds R of its kind, one field after the other.
constexpr size_t record_codes = 0;    // 32 int8
constexpr size_t record_scale = 32;   // fp32
constexpr size_t record_sum = 36;     // fp32: scale times the sum of the codes
constexpr size_t record_minus = 40;   // int32: minus the sum of the codes
constexpr size_t record_first = 44;   // int32: the same of columns 0..15
constexpr size_t record_second = 48;  // int32: the same of columns 16..31
constexpr size_t record_bytes = 52;
constexpr size_t max_tile = 8;

// A tile has the records of all its groups, then as many for second digits: what the first int8 leaves of a value where the group
// holds outliers, a record of the same form on a scale 254 times finer. They are added after all first digits, group by group. Where
// no row of a tile has them, `wide` of the group is 0 and they are not read; a row that has none beside one that does has zeros there.
constexpr size_t digits = 2;
constexpr float digit_ratio = 254;

struct BlockTask {
  uint32_t kind;
  const uint8_t* blocks;  // block b at blocks + b * block_bytes: meta_bytes of scales, then the integers
  size_t block_bytes, meta_bytes, channels, cols, groups;
  float* out;  // out[r * out_stride + channel]
  size_t out_stride;
  const float* bias;  // [channels] or null
  bool add;
};

struct Rows {
  const uint8_t* tiles;  // tile t begins at row t * rows / count, at byte row * groups * digits * record_bytes
  const uint8_t* wide;   // [count, groups]: whether any row of the tile has second digits in the group
  size_t count, rows;
  const float* x;  // [rows, x_stride], for dense weights
  size_t x_stride;
};

struct LinearKernels {
  // Quantizes one row (cols floats): group g's fields go to `to + g * tile_rows * record_bytes`, as row `index` of its tile. Groups
  // whose peak is more than `outlier` times the mean of the row's peaks get second digits, and their byte of `wide` is set.
  void (*quantize_row)(const float* x, size_t cols, float outlier, uint8_t* to, uint8_t* wide, size_t index, size_t tile_rows);
  void (*linear_blocks)(const BlockTask* task, const Rows* rows, size_t begin, size_t end);
  // `rounds` times 1024 dot products of 64 int8 and nothing else; returns a value that depends on all of them.
  int (*integer_peak)(size_t rounds);
};

}  // namespace forerun
