// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <climits>

#include "failure.h"

namespace fa3::machine {
namespace {

constexpr uint32_t kPieceBytes = 1024;
constexpr uint32_t kUnitBytes = 64;  // buffers begin and end at multiples of it

std::string place(uint32_t address) {
  return "address " + std::to_string(address);
}

}  // namespace

Memory::Memory(const std::vector<Buffer>& buffers) : buffers_(buffers) {
  std::vector<bool> split(kSmemBytes / kUnitBytes + 1);
  for (size_t unit = 0; unit < split.size(); unit += kPieceBytes / kUnitBytes) split[unit] = true;
  for (const Buffer& b : buffers_) {
    if (b.address % kUnitBytes != 0 || b.bytes % kUnitBytes != 0 || b.address < kSmemBase ||
        b.address + b.bytes > kSmemBase + kSmemBytes) {
      fail("buffer '", b.name, "' is outside, or not a multiple of ", kUnitBytes, " bytes");
    }
    split[(b.address - kSmemBase) / kUnitBytes] = true;
    split[(b.address - kSmemBase + b.bytes) / kUnitBytes] = true;
  }
  for (size_t unit = 0; unit + 1 < split.size(); ++unit) {
    if (split[unit]) {
      splits_.emplace_back();
      splits_.back().begin = kSmemBase + uint32_t(unit) * kUnitBytes;
    }
    splits_.back().end = kSmemBase + uint32_t(unit + 1) * kUnitBytes;
    piece_of_unit_.push_back(int(splits_.size()) - 1);
  }
}

Memory::Piece& Memory::at(uint32_t address) {
  const uint32_t unit = (address - kSmemBase) / kUnitBytes;
  if (address < kSmemBase || unit >= piece_of_unit_.size()) fail(place(address), " is outside");
  return splits_[size_t(piece_of_unit_[unit])];
}

template <class Action>
void Memory::for_pieces(uint32_t address, int bytes, const Action& action) {
  for (uint32_t next = address; next < address + uint32_t(bytes);) {
    Piece& split = at(next);
    action(split);
    next = split.end;
  }
}

// The smallest buffer that holds the address.
const Buffer& Memory::range_of_threads(uint32_t address, const char* access) {
  const Buffer* found = nullptr;
  for (const Buffer& b : buffers_) {
    const bool holds = address >= b.address && address < b.address + b.bytes;
    if (holds && (found == nullptr || b.bytes < found->bytes)) found = &b;
  }
  if (found == nullptr) {
    fail(access, " at ", place(address),
         ": in no buffer. Of a warp only lane 0 is seen, so the test names what threads store to "
         "and "
         "load from (Setting::buffers)");
  }
  return *found;
}

void Memory::require_unread(const Accessor& by, const Piece& split, const char* access) const {
  for (int w = 0; w < kMostWarps; ++w) {
    const Read& read = split.reads[size_t(w)];
    if (read.open > 0 || !by.knows.has({w, read.time})) {
      fail("overwritten while it is read: ", place(split.begin), ", read by warp ", w, ", by ",
           access, " of warp ", by.warp);
    }
  }
  if (split.arriving || !by.knows.has(split.arrival)) {
    fail("overwritten while a copy arrives: ", place(split.begin), ", by ", access, " of warp ",
         by.warp);
  }
}

void Memory::require_filled(const Accessor& by, const Piece& split) const {
  if (!split.filled || split.arriving || !by.knows.has(split.arrival)) {
    fail("read before it was filled: ", place(split.begin), " by warp ", by.warp);
  }
  for (int w = 0; w < kMostWarps; ++w) {
    if (!by.knows.has({w, split.stored[size_t(w)].time})) {
      fail("no barrier between the store of warp ", w, " and its reader: ", place(split.begin),
           ", read by warp ", by.warp);
    }
  }
}

void Memory::require_fenced(const Accessor& by, const Piece& split) const {
  for (int w = 0; w < kMostWarps; ++w) {
    const Stored& s = split.stored[size_t(w)];
    if (s.time > 0 && (s.fenced == 0 || !by.knows.has({w, s.fenced}))) {
      fail("no fence.proxy.async between the store of warp ", w,
           " and the barrier after it: ", place(split.begin), ", met by warp ", by.warp);
    }
  }
  if (split.copier >= 0 && !known_at_fence_[size_t(by.warp)].has(split.arrival)) {
    fail("no fence.proxy.async between the barrier of copies by threads of warp ", split.copier,
         " and their reader: ", place(split.begin), ", met by warp ", by.warp);
  }
}

void Memory::begin_copy(const Accessor& by, uint32_t address, int bytes, Moment arrival) {
  for_pieces(address, bytes, [&](Piece& split) {
    require_unread(by, split, "a load");
    for (int w = 0; w < kMostWarps; ++w) {
      if (!by.knows.has({w, split.stored[size_t(w)].time})) {
        fail("overwritten while it is stored: ", place(split.begin), ", stored by warp ", w,
             ", by a load of warp ", by.warp);
      }
    }
    require_fenced(by, split);
    split.stored.fill({});
    split.arriving = true;
    split.arrival = arrival;
    split.copier = -1;
  });
}

void Memory::begin_thread_copy(const Accessor& by, uint32_t address) {
  Piece& split = at(address);
  const Moment untold{by.warp, INT_MAX};
  const bool goes_on = split.arriving && split.copier == by.warp && split.arrival == untold;
  if (!goes_on) require_unread(by, split, "a copy by threads");
  split.arriving = true;
  split.arrival = untold;
  split.copier = by.warp;
}

void Memory::tell_arrival(uint32_t address, Moment arrival) {
  at(address).arrival = arrival;
}

void Memory::end_thread_copy(uint32_t address, Content content) {
  Piece& split = at(address);
  constexpr uint32_t kRowBytes = 128;  // the widest
  content.row -= int((address - split.begin) / kRowBytes);
  split.arriving = false;
  split.filled = true;
  split.content = content;
}

void Memory::end_copy(uint32_t address, int bytes,
                      const std::function<Content(int offset)>& content) {
  for_pieces(address, bytes, [&](Piece& split) {
    split.arriving = false;
    split.filled = true;
    split.content = content(int(std::max(split.begin, address) - address));
  });
}

void Memory::store(const Accessor& by, uint32_t address) {
  const Buffer& range = range_of_threads(address, "a store");
  for_pieces(range.address, range.bytes, [&](Piece& split) {
    require_unread(by, split, "a store");
    split.copier = -1;
    stored_by(by, &split);
    if (range.in_place) return;
    const bool stored_before = !split.filled || split.content.tensor == nullptr;
    split.content = {.filling = stored_before ? split.content.filling : 0};
    if (!split.filled || !stored_before || split.read_since_stored) ++split.content.filling;
    split.filled = true;
    split.read_since_stored = false;
  });
}

void Memory::stored_by(const Accessor& by, Piece* split) {
  split->stored[size_t(by.warp)] = {.time = by.now().time};
  unfenced_[size_t(by.warp)].push_back(int(split - splits_.data()));
}

void Memory::load(const Accessor& by, uint32_t address) {
  const Buffer& range = range_of_threads(address, "a load");
  for_pieces(range.address, range.bytes, [&](Piece& split) {
    require_filled(by, split);
    split.reads[size_t(by.warp)].time = by.now().time;
    split.read_since_stored = true;
  });
}

void Memory::fence(const Accessor& by) {
  for (int index : unfenced_[size_t(by.warp)]) {
    Stored& stored = splits_[size_t(index)].stored[size_t(by.warp)];
    if (stored.time > 0 && stored.fenced == 0) stored.fenced = by.now().time;
  }
  unfenced_[size_t(by.warp)].clear();
  known_at_fence_[size_t(by.warp)] = by.knows;
}

const Content& Memory::begin_read(const Accessor& by, uint32_t address, int bytes,
                                  HeldPieces* held) {
  for_pieces(address, bytes, [&](Piece& split) {
    require_filled(by, split);
    require_fenced(by, split);
    ++split.reads[size_t(by.warp)].open;
    split.read_since_stored = true;
    held->push_back(int(&split - splits_.data()));
  });
  return at(address).content;
}

void Memory::end_reads(const Accessor& by, HeldPieces* held) {
  for (int index : *held) {
    Read& read = splits_[size_t(index)].reads[size_t(by.warp)];
    --read.open;
    read.time = by.now().time;
  }
  held->clear();
}

}  // namespace fa3::machine
