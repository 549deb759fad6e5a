// SPDX-License-Identifier: Apache-2.0
//
// The .npy parser: what NumPy writes is read, and no bytes whatever make it read past the file,
// accept a lie, or fail without a sentence. Run under the address sanitizer it is a small fuzzer.
#include "cli/files/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace fa3::cli {
namespace {

// A file in memory of exactly its size, so that the sanitizer sees any read past it.
class File {
 public:
  explicit File(const std::string& bytes) : bytes_(bytes.size()) {
    if (!bytes.empty()) std::memcpy(bytes_.data(), bytes.data(), bytes.size());
  }
  Status parse(NpyArray* array) const { return parse_npy(bytes_, bytes_.size(), array); }
  uint64_t data_bytes(const NpyArray& array) const { return bytes_.size() - array.data_begin; }

 private:
  std::vector<std::byte> bytes_;
};

std::string with_preamble(int major, const std::string& header) {
  const size_t length_bytes = major == 1 ? 2 : 4;
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (size_t i = 0; i < length_bytes; ++i)
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header;
}

std::string dict(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

// The message of the error that `bytes` give; "" if they are accepted.
std::string refusal(const std::string& bytes) {
  NpyArray array{.type = NpyType::uint16, .shape = {42}};
  const Status status = File(bytes).parse(&array);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(array.shape, std::vector<int64_t>{42}) << "a refused file must not change the array";
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  EXPECT_FALSE(status.message().empty());
  EXPECT_LT(status.message().size(), 250u) << status.message();
  return status.message();
}

const std::string kData24(24, '\x11');

TEST(Npy, reads_every_version_that_numpy_writes) {
  for (int major : {1, 2, 3}) {
    const File file(with_preamble(major, dict("<f4", "False", "(2, 3)")) + kData24);
    NpyArray array;
    const Status status = file.parse(&array);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(array.type, NpyType::float32);
    EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.data_bytes(array), 24u);
  }
}

TEST(Npy, reads_every_dtype_it_names) {
  const struct {
    const char* descr;
    NpyType type;
    int64_t elements;
  } kCases[] = {{"<f4", NpyType::float32, 6},   {"<f2", NpyType::float16, 12},
                {"<f8", NpyType::float64, 3},   {"<V2", NpyType::bfloat16, 12},
                {"|V2", NpyType::bfloat16, 12}, {"<u2", NpyType::uint16, 12}};
  for (const auto& c : kCases) {
    NpyArray array;
    const File file(
        with_preamble(1, dict(c.descr, "False", "(" + std::to_string(c.elements) + ",)")) +
        kData24);
    const Status status = file.parse(&array);
    ASSERT_TRUE(status.ok()) << c.descr << ": " << status.message();
    EXPECT_EQ(array.type, c.type) << c.descr;
  }
}

TEST(Npy, accepts_any_key_order_spacing_and_quotes) {
  for (const char* header : {
           "{'shape':(6,),'fortran_order':False,'descr':'<f4'}",
           "{ \"descr\" : \"<f4\" , \"shape\" : ( 6 ) , \"fortran_order\" : False , }   \n",
           "\n{\t'fortran_order': False, 'descr': '<f4', 'shape': (2, 3,)\r\n}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2, 3), }",
       }) {
    NpyArray array;
    const Status status = File(with_preamble(1, header) + kData24).parse(&array);
    EXPECT_TRUE(status.ok()) << header << ": " << status.message();
  }
}

TEST(Npy, reads_scalars_and_empty_arrays) {
  NpyArray array;
  ASSERT_TRUE(File(with_preamble(1, dict("<f8", "False", "()")) + "12345678").parse(&array).ok());
  EXPECT_TRUE(array.shape.empty());
  const File empty(with_preamble(1, dict("<f4", "False", "(3, 0, 5)")));
  ASSERT_TRUE(empty.parse(&array).ok());
  EXPECT_EQ(empty.data_bytes(array), 0u);
}

TEST(Npy, written_headers_are_read_back_and_aligned) {
  const std::vector<std::vector<int64_t>> kShapes = {
      {}, {0}, {7}, {1, 282, 12, 32}, {1, 2, 3, 4, 5, 6}, {1000000000000, 0}};
  for (const auto& shape : kShapes) {
    for (NpyType type : {NpyType::float32, NpyType::float16, NpyType::bfloat16, NpyType::float64}) {
      std::string bytes = npy_header(type, shape);
      EXPECT_EQ(bytes.size() % 64, 0u);
      EXPECT_EQ(bytes.back(), '\n');
      int64_t elements = 1;
      for (int64_t extent : shape) elements *= extent;
      bytes.append(static_cast<size_t>(elements * size_of(type)), 'x');
      NpyArray array;
      const Status status = File(bytes).parse(&array);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(array.shape, shape);
      EXPECT_EQ(array.type, type);
    }
  }
}

TEST(Npy, foreign_files_are_refused) {
  EXPECT_NE(refusal("").find("empty file"), std::string::npos);
  EXPECT_NE(refusal("PK\x03\x04 an npz archive").find("numpy.save"), std::string::npos);
  EXPECT_NE(refusal("\x93NUMP").find("other bytes"), std::string::npos);
  EXPECT_NE(refusal("\x93NUMPY").find("format version"), std::string::npos);
  EXPECT_NE(refusal(std::string("\x93NUMPY\x04\x00\x10\x00", 10)).find("got 4.0"),
            std::string::npos);
  EXPECT_NE(refusal(std::string("\x93NUMPY\x01\x01\x10\x00", 10)).find("got 1.1"),
            std::string::npos);
}

TEST(Npy, foreign_dtypes_are_refused_with_what_to_do) {
  const struct {
    const char* descr;
    const char* says;
  } kCases[] = {{">f4", "big endian"}, {">f2", "big endian"}, {"|O", "Python objects"},
                {"<i4", "astype"},     {"<c8", "astype"},     {"|b1", "astype"},
                {"<U5", "astype"},     {"", "astype"},        {"f4", "astype"},
                {"<f4 ", "astype"},    {"<V4", "astype"},     {"<f16", "astype"}};
  for (const auto& c : kCases) {
    EXPECT_NE(refusal(with_preamble(1, dict(c.descr, "False", "(6,)")) + kData24).find(c.says),
              std::string::npos)
        << c.descr;
  }
  EXPECT_NE(refusal(with_preamble(1,
                                  "{'descr': [('x', '<f4')], 'fortran_order': False, "
                                  "'shape': (6,), }"))
                .find("structured"),
            std::string::npos);
}

TEST(Npy, fortran_order_is_refused) {
  EXPECT_NE(
      refusal(with_preamble(1, dict("<f4", "True", "(2, 3)")) + kData24).find("ascontiguousarray"),
      std::string::npos);
}

TEST(Npy, every_truncation_is_refused) {
  for (int major : {1, 2}) {
    const std::string whole = with_preamble(major, dict("<f4", "False", "(2, 3)")) + kData24;
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(refusal(whole.substr(0, size)), "") << size << " of " << whole.size() << " bytes";
    }
    EXPECT_EQ(refusal(whole), "");
  }
}

TEST(Npy, bytes_after_the_array_are_refused) {
  EXPECT_NE(
      refusal(with_preamble(1, dict("<f4", "False", "(6,)")) + kData24 + "x").find("not one array"),
      std::string::npos);
}

TEST(Npy, a_header_longer_than_the_file_is_refused) {
  EXPECT_NE(refusal(std::string("\x93NUMPY\x01\x00\xff\xff{", 11)).find("truncated"),
            std::string::npos);
  EXPECT_NE(refusal(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{", 13)).find("truncated"),
            std::string::npos);
}

// Only a beginning is in memory: the data that follows is counted, and a header has to end in it.
TEST(Npy, the_beginning_of_a_large_file_is_enough) {
  const std::string header = with_preamble(1, dict("<f4", "False", "(1073741824, 8)"));
  const std::string beginning = header + std::string(kNpyBeginning - header.size(), 'x');
  const auto* bytes = reinterpret_cast<const std::byte*>(beginning.data());
  NpyArray array;
  const uint64_t file_bytes = header.size() + (uint64_t{1} << 35);
  EXPECT_TRUE(parse_npy({bytes, beginning.size()}, file_bytes, &array).ok());
  EXPECT_EQ(array.data_begin, header.size());
  EXPECT_FALSE(parse_npy({bytes, beginning.size()}, file_bytes - 1, &array).ok());
  const std::string endless =
      with_preamble(2, std::string(kNpyBeginning, '{')).substr(0, kNpyBeginning);
  bytes = reinterpret_cast<const std::byte*>(endless.data());
  const Status status = parse_npy({bytes, endless.size()}, file_bytes, &array);
  EXPECT_NE(status.message().find("at most"), std::string::npos) << status.message();
}

TEST(Npy, extents_whose_product_overflows_are_refused) {
  for (const char* shape : {
           "(9223372036854775807, 9223372036854775807)",
           "(4294967296, 4294967296)",
           "(2305843009213693952,)",       // 2^61 elements of 4 bytes
           "(0, 9223372036854775807, 2)",  // empty, but its strides would overflow
           "(3037000500, 3037000500, 1, 0)",
           "(65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536, 65536)",
       }) {
    EXPECT_NE(refusal(with_preamble(1, dict("<f4", "False", shape))).find("product"),
              std::string::npos)
        << shape;
  }
  // Huge, but honest arithmetic: only the data is missing.
  EXPECT_NE(refusal(with_preamble(1, dict("<f4", "False", "(1000000000000,)"))).find("truncated"),
            std::string::npos);
}

TEST(Npy, hostile_headers_are_refused) {
  const std::string huge(60000, '(');
  for (const std::string& header : {
           std::string(""),
           std::string(" "),
           std::string("{"),
           std::string("}"),
           std::string("{}"),
           std::string("[]"),
           std::string("None"),
           std::string("{'descr': '<f4', 'fortran_order': False}"),
           std::string("{'descr': '<f4', 'shape': (6,)}"),
           std::string("{'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'extra': 1}"),
           std::string("{'descr: '<f4', 'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr': '<f4, 'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr': '<f4'  'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr' '<f4', 'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr': <f4, 'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr': '<f4', 'fortran_order': 0, 'shape': (6,)}"),
           std::string("{'descr': '<f4', 'fortran_order': Falsehood, 'shape': (6,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': 6}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (6,}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -6)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (6.0,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (0x6,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': ((6,),)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (1e1,)}"),
           std::string(
               "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} trailing"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)\0}", 56),
           std::string("{'descr': '\xc3\xa9', 'fortran_order': False, 'shape': (6,)}"),
           std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}\xff"),
           std::string("{'descr': '\x1b[31m', 'fortran_order': False, 'shape': (6,)}"),
           "{'descr': '<f4', 'fortran_order': False, 'shape': " + huge,
           "{'descr': " + std::string(60000, '[') + "'<f4'",
           std::string(60000, '{'),
           "{'" + std::string(60000, 'k') + "': 1}",
       }) {
    const std::string message = refusal(with_preamble(1, header) + kData24);
    EXPECT_NE(message, "") << header.substr(0, 100);
    for (char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << "unprintable in: " << message;
  }
  std::string many = "(";
  for (int i = 0; i < 40; ++i) many += "1, ";
  EXPECT_NE(refusal(with_preamble(1, dict("<f4", "False", many + ")")) + "1234").find("dimensions"),
            std::string::npos);
}

// Any accepted file must be consistent; the rest is that nothing crashes and every refusal speaks.
void expect_sane(const std::string& bytes) {
  NpyArray array;
  const File file(bytes);
  const Status status = file.parse(&array);
  if (!status.ok()) {
    EXPECT_FALSE(status.message().empty());
    return;
  }
  int64_t elements = 1;
  for (int64_t extent : array.shape) {
    ASSERT_GE(extent, 0);
    elements *= extent;
  }
  EXPECT_EQ(static_cast<size_t>(elements * size_of(array.type)), file.data_bytes(array));
}

TEST(Npy, random_damage_never_reads_past_the_file_or_accepts_a_lie) {
  std::mt19937_64 random(20240711);
  const std::string valid[] = {with_preamble(1, dict("<f4", "False", "(2, 3)")) + kData24,
                               with_preamble(2, dict("<f2", "False", "(1, 3, 2, 2)")) + kData24,
                               with_preamble(3, dict("<V2", "False", "(12,)")) + kData24};
  const std::string pieces[] = {"(",     ")",     "{",    "}",
                                "'",     ",",     "-",    "9223372036854775807",
                                "shape", "False", "\xff", std::string(1, '\0'),
                                "<f8",   ":",     " "};
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = valid[random() % std::size(valid)];
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % (bytes.size() + 1);
      switch (random() % 4) {
        case 0:
          if (at < bytes.size()) bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.insert(at, pieces[random() % std::size(pieces)]);
          break;
        case 2:
          bytes.erase(at, random() % 8);
          break;
        default:
          if (at < bytes.size()) bytes.replace(at, 1, pieces[random() % std::size(pieces)]);
      }
    }
    expect_sane(bytes);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace fa3::cli
