// SPDX-License-Identifier: Apache-2.0
// What kernels use of the standard library and of the driver, for NVRTC, which has neither. Each of
// those headers is this one there (tools/embed_headers.py).
#ifndef FA3_JIT_STD
#define FA3_JIT_STD

// ---- cstdint ----

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;

#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807l

// ---- cstddef ----

// Its value is no constant expression here, but no wider than what takes it.
#define offsetof(type, member) \
  static_cast<unsigned>(reinterpret_cast<size_t>(&reinterpret_cast<type*>(size_t{0})->member))

namespace std {
enum class byte : unsigned char {};
}

// ---- cfloat ----

#define FLT_MAX 0x1.fffffep127f
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)

// ---- numbers ----

namespace std::numbers {
template <class T>
inline constexpr T log2e_v = T(1.4426950408889634074);
template <class T>
inline constexpr T ln2_v = T(0.6931471805599453094);
inline constexpr double log2e = log2e_v<double>;
}  // namespace std::numbers

// ---- type_traits ----

namespace std {
template <bool Condition, class Then, class Else>
struct conditional {
  using type = Then;
};
template <class Then, class Else>
struct conditional<false, Then, Else> {
  using type = Else;
};
template <bool Condition, class Then, class Else>
using conditional_t = typename conditional<Condition, Then, Else>::type;

template <class T>
struct type_identity {
  using type = T;
};
template <class T>
using type_identity_t = typename type_identity<T>::type;

template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;
}  // namespace std

// ---- utility ----

namespace std {
template <class T>
T&& declval() noexcept;

template <class T, T... Numbers>
struct integer_sequence {};

template <int Count, int... Numbers>
struct fa3_numbers : fa3_numbers<Count - 1, Count - 1, Numbers...> {};
template <int... Numbers>
struct fa3_numbers<0, Numbers...> {
  using type = integer_sequence<int, Numbers...>;
};
template <class T, T Count>
using make_integer_sequence = typename fa3_numbers<Count>::type;  // of int
}  // namespace std

// ---- algorithm ----

namespace std {
template <class T>
constexpr const T& min(const T& a, const T& b) {
  return b < a ? b : a;
}
template <class T>
constexpr const T& max(const T& a, const T& b) {
  return a < b ? b : a;
}
template <class T>
constexpr const T& clamp(const T& x, const T& least, const T& most) {
  return x < least ? least : most < x ? most : x;
}
}  // namespace std

// ---- cuda.h ----

struct alignas(128) CUtensorMap {
  unsigned long opaque[16];
};

#endif
