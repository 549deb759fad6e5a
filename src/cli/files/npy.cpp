// SPDX-License-Identifier: Apache-2.0
#include "cli/files/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "core/macros.h"

namespace fa3::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxRank = 32;  // NumPy's own limit until 2.0; attention needs 4
constexpr int64_t kMaxBytes = INT64_MAX;

struct Known {
  NpyType type;
  const char* descr;
  int64_t bytes;
};
constexpr std::array kKnown = {
    Known{NpyType::float32, "<f4", 4},  Known{NpyType::float16, "<f2", 2},
    Known{NpyType::float64, "<f8", 8},  Known{NpyType::bfloat16, "<V2", 2},
    Known{NpyType::bfloat16, "|V2", 2}, Known{NpyType::uint16, "<u2", 2},
};

const Known& known(NpyType type) {
  return *std::find_if(kKnown.begin(), kKnown.end(),
                       [&](const Known& k) { return k.type == type; });
}

// A piece of a hostile header, safe to show: printable, short.
std::string shown(std::string_view text) {
  constexpr size_t kLongest = 32;
  std::string out;
  for (char c : text.substr(0, kLongest)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kLongest ? out + "..." : out;
}

struct Header {
  std::string_view descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// The header is a Python dict literal. Only the one form that NumPy writes is accepted, with keys
// in any order; there is no recursion, so no input can exhaust the stack.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  Status parse(Header* header) {
    FA3_TRY(expect('{'));
    bool has_descr = false, has_order = false, has_shape = false;
    while (!accept('}')) {
      std::string_view key;
      FA3_TRY(quoted(&key));
      FA3_TRY(expect(':'));
      if (key == "descr" && !has_descr) {
        has_descr = true;
        FA3_TRY(descr(&header->descr));
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        FA3_TRY(boolean(&header->fortran_order));
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        FA3_TRY(shape(&header->shape));
      } else {
        return invalid("header: expected each of descr, fortran_order, shape once, got the key '",
                       shown(key), "'");
      }
      if (!accept(',') && peek() != '}') return unexpected("',' or '}'");
    }
    skip_space();
    if (at_ < text_.size()) return unexpected("nothing after the closing '}'");
    if (has_descr && has_order && has_shape) return {};
    return invalid("header: expected descr, fortran_order and shape, got no ", !has_descr ? "descr"
                                                                               : !has_order
                                                                                   ? "fortran_order"
                                                                                   : "shape");
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }

  // '\0' at the end.
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  Status expect(char c) { return accept(c) ? Status{} : unexpected(std::string{'\'', c, '\''}); }

  Status unexpected(std::string_view wanted) {
    skip_space();
    if (at_ >= text_.size()) {
      return invalid("header: expected ", wanted, ", got the end of the header");
    }
    return invalid("header: expected ", wanted, " at byte ", at_, ", got '",
                   shown(text_.substr(at_, 8)), "'");
  }

  Status quoted(std::string_view* out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return unexpected("a quoted name");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) return unexpected("a closing quote for the name");
    *out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return {};
  }

  Status descr(std::string_view* out) {
    if (peek() == '[' || peek() == '(' || peek() == '{') {
      return invalid("header: expected a plain dtype such as '<f4', got a structured one");
    }
    return quoted(out);
  }

  Status boolean(bool* out) {
    for (const auto& [word, value] : {std::pair{"False", false}, {"True", true}}) {
      skip_space();
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::strlen(word);
        *out = value;
        return {};
      }
    }
    return unexpected("True or False");
  }

  Status shape(std::vector<int64_t>* out) {
    FA3_TRY(expect('('));
    while (!accept(')')) {
      int64_t extent = 0;
      FA3_TRY(number(&extent));
      if (out->size() == kMaxRank) {
        return invalid("header: expected a shape of at most ", kMaxRank, " dimensions, got more");
      }
      out->push_back(extent);
      if (!accept(',') && peek() != ')') return unexpected("',' or ')' in the shape");
    }
    return {};
  }

  Status number(int64_t* out) {
    skip_space();
    const char* const begin = text_.data() + at_;
    const char* const end = text_.data() + text_.size();
    const auto [past, error] = std::from_chars(begin, end, *out);
    if (error == std::errc::result_out_of_range) {
      return invalid("header: expected extents below 2^63, got ", shown({begin, end}));
    }
    if (error != std::errc{}) return unexpected("a number or ')' in the shape");
    if (*out < 0) return invalid("header: expected extents >= 0 in the shape, got ", *out);
    at_ += static_cast<size_t>(past - begin);
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Finds the header, which is text, and where it ends.
Status find_header(std::span<const std::byte> beginning, uint64_t file_bytes,
                   std::string_view* header, uint64_t* end) {
  const std::string_view text(reinterpret_cast<const char*>(beginning.data()), beginning.size());
  if (!text.starts_with(kMagic)) {
    return invalid("expected a .npy file, which starts with \\x93NUMPY, got ",
                   text.empty() ? "an empty file" : "other bytes",
                   "; write it with numpy.save, not savez or tofile");
  }
  if (text.size() < kMagic.size() + 2)
    return invalid("expected a format version, got the file's end");
  const auto byte_at = [&](size_t i) { return size_t{static_cast<unsigned char>(text[i])}; };
  const size_t major = byte_at(6), minor = byte_at(7);
  if (major < 1 || major > 3 || minor != 0) {
    return invalid("expected .npy version 1.0, 2.0 or 3.0, got ", major, ".", minor);
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t start = kMagic.size() + 2 + length_bytes;
  if (text.size() < start) return invalid("expected a header length, got the file's end");
  size_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) length = length << 8 | byte_at(kMagic.size() + 2 + i);
  if (length > file_bytes - start) {
    return invalid("header: expected ", length, " bytes as the file declares, got only ",
                   file_bytes - start, "; the file is truncated or damaged");
  }
  if (length > text.size() - start) {
    return invalid("header: expected at most ", text.size() - start, " bytes, got ", length,
                   "; the file is damaged");
  }
  *header = text.substr(start, length);
  *end = start + length;
  return {};
}

Status check_ascii(std::string_view header) {
  for (size_t i = 0; i < header.size(); ++i) {
    const auto byte = static_cast<unsigned char>(header[i]);
    if (byte >= 0x80 || byte == 0) {
      return invalid("header: expected ASCII text, got byte ", int{byte}, " at ", i);
    }
  }
  return {};
}

Status check_descr(std::string_view descr, NpyType* type, int64_t* bytes) {
  for (const Known& k : kKnown) {
    if (descr != k.descr) continue;
    *type = k.type;
    *bytes = k.bytes;
    return {};
  }
  if (descr.starts_with('>')) {
    return invalid("dtype: expected little endian, got big endian '", shown(descr),
                   "'; convert with x.astype(x.dtype.newbyteorder('<'))");
  }
  if (descr.find('O') != descr.npos) {
    return invalid("dtype: expected numbers, got Python objects ('", shown(descr), "')");
  }
  return invalid("dtype: expected '<f4', '<f2', '<f8', '<V2' or '<u2', got '", shown(descr),
                 "'; convert with x.astype(numpy.float32)");
}

// Bytes of all elements. Extents are >= 0. Extents beside a 0 must not overflow either: strides
// are made of them.
Status count_bytes(const std::vector<int64_t>& shape, int64_t item_bytes, int64_t* bytes) {
  int64_t product = item_bytes;
  bool empty = false;
  for (int64_t extent : shape) {
    empty = empty || extent == 0;
    if (extent > 0 && product > kMaxBytes / extent) {
      return invalid("shape: expected a product below 2^63 bytes, got more; the header is damaged");
    }
    if (extent > 0) product *= extent;
  }
  *bytes = empty ? 0 : product;
  return {};
}

}  // namespace

int64_t size_of(NpyType type) {
  return known(type).bytes;
}

const char* descr_of(NpyType type) {
  return known(type).descr;
}

Status parse_npy(std::span<const std::byte> beginning, uint64_t file_bytes, NpyArray* array) {
  std::string_view text;
  uint64_t data_begin = 0;
  FA3_TRY(find_header(beginning, file_bytes, &text, &data_begin));
  FA3_TRY(check_ascii(text));
  Header header;
  FA3_TRY(HeaderParser(text).parse(&header));
  NpyType type{};
  int64_t item_bytes = 0, bytes = 0;
  FA3_TRY(check_descr(header.descr, &type, &item_bytes));
  if (header.fortran_order) {
    return invalid("order: expected C order, got Fortran order; save numpy.ascontiguousarray(x)");
  }
  FA3_TRY(count_bytes(header.shape, item_bytes, &bytes));
  const uint64_t found = file_bytes - data_begin, expected = static_cast<uint64_t>(bytes);
  if (found != expected) {
    return invalid("data: expected ", expected, " bytes for the shape, got ", found,
                   expected > found ? "; the file is truncated" : "; the file is not one array");
  }
  *array = {type, std::move(header.shape), data_begin};
  return {};
}

std::string npy_header(NpyType type, std::span<const int64_t> shape) {
  std::string dict = concat("{'descr': '", descr_of(type), "', 'fortran_order': False, 'shape': (");
  for (size_t i = 0; i < shape.size(); ++i) {
    dict += concat(i == 0 ? "" : " ", shape[i], i == 0 || i + 1 < shape.size() ? "," : "");
  }
  dict += "), }";
  constexpr size_t kAlignment = 64, kPreamble = 10;
  const size_t unpadded = kPreamble + dict.size() + 1;
  dict.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dict += '\n';
  std::string header(kMagic);
  header +=
      {'\x01', '\x00', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

}  // namespace fa3::cli
