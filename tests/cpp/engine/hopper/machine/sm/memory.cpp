// SPDX-License-Identifier: Apache-2.0
#include "sm/memory.h"

#include <climits>

#include "failure.h"

namespace fa3::machine {
namespace {

constexpr uint32_t kUnitBytes = 16;  // buffers begin and end at multiples of it
constexpr uint32_t kLaneBytes = 16;  // of a lane's access

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
Buffer Memory::range_of_threads(uint32_t address, const char* access) const {
  if (kAllLanes) return {"of a lane", address / kLaneBytes * kLaneBytes, kLaneBytes, true};
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

int Memory::strip_of(const Buffer& range, uint32_t address) {
  constexpr int kStripedBytes = 128;
  if (range.strips == 1) return kWhole;
  return int(address % kStripedBytes) / (kStripedBytes / range.strips);
}

void Memory::require_unread(const Accessor& by, const Piece& split, const char* access,
                            int strip) const {
  for (const Moment& sent : split.sends) {
    if (by.knows.has(sent)) continue;
    fail("overwritten while it is read: ", place(split.begin), ", sent to another CTA, by ", access,
         " of ", name(by.thread));
  }
  for (int w = 0; w < kMostThreads; ++w) {
    const Read& read = split.reads[size_t(w)];
    if (!meet(strip, read.strip)) continue;
    // Who is told of a copy's arrival need not be told of the readings that its copier knew of.
    if (read.copied_over && by.knows.has(split.arrival)) continue;
    if (read.open > 0 || !by.knows_of(w, read.time)) {
      fail("overwritten while it is read: ", place(split.begin), ", read by ", name(w), ", by ",
           access, " of ", name(by.thread));
    }
  }
}

void Memory::require_arrived(const Accessor& by, const Piece& split, const char* access) const {
  if (split.arriving || split.own_copies > 0 || !by.knows.has(split.arrival)) {
    fail("overwritten while a copy arrives: ", place(split.begin), ", by ", access, " of ",
         name(by.thread));
  }
}

void Memory::require_filled(const Accessor& by, const Piece& split, int strip) const {
  const bool arrives = split.arriving || split.own_copies > 0;
  if (!split.filled || arrives || !by.knows.has(split.arrival)) {
    fail("read before it was filled: ", place(split.begin), " by ", name(by.thread));
  }
  for (int w = 0; w < kMostThreads; ++w) {
    const Stored& stored = split.stored[size_t(w)];
    if (meet(strip, stored.strip) && !by.knows_of(w, stored.time)) {
      fail("no barrier between the store of ", name(w), " and its reader: ", place(split.begin),
           ", read by ", name(by.thread));
    }
  }
}

void Memory::require_fenced(const Accessor& by, const Piece& split) const {
  for (int w = 0; w < kMostThreads; ++w) {
    const Stored& s = split.stored[size_t(w)];
    if (s.time > 0 && (s.fenced == 0 || !by.knows_of(w, s.fenced))) {
      fail("no fence.proxy.async between the store of ", name(w),
           " and the barrier after it: ", place(split.begin), ", met by ", name(by.thread));
    }
  }
  if (split.copier >= 0 && !known_at_fence_[size_t(by.thread)].has(split.arrival)) {
    fail("no fence.proxy.async between the barrier of copies by threads of ", name(split.copier),
         " and their reader: ", place(split.begin), ", met by ", name(by.thread));
  }
}

void Memory::begin_copy(const Accessor& by, uint32_t address, int bytes, Moment arrival) {
  for_pieces(address, bytes, [&](Piece& split) {
    require_unread(by, split, "a load");
    require_arrived(by, split, "a load");
    for (int w = 0; w < kMostThreads; ++w) {
      if (!by.knows_of(w, split.stored[size_t(w)].time)) {
        fail("overwritten while it is stored: ", place(split.begin), ", stored by ", name(w),
             ", by a load of ", name(by.thread));
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
  const Moment untold{actor_of_thread(by.cta, by.thread), INT_MAX};
  const bool goes_on = split.arriving && split.copier == by.thread && split.arrival == untold;
  if (!goes_on) {
    require_unread(by, split, "a copy by threads");
    require_arrived(by, split, "a copy by threads");
  }
  split.arriving = true;
  split.arrival = untold;
  split.copier = by.thread;
}

// Lanes copy different bytes of one piece.
void Memory::begin_own_copy(const Accessor& by, uint32_t address) {
  Piece& split = at(address);
  require_unread(by, split, "a copy by threads");
  // Who is told of the copy need not be told of what came before it, that the copying lane knew of.
  for (int w = 0; w < kMostThreads; ++w) {
    Stored& stored = split.stored[size_t(w)];
    if (stored.time > 0 && by.knows_of(w, stored.time)) stored = {};
  }
  ++split.own_copies;
}

void Memory::end_own_copy(const Accessor& by, uint32_t address, const Content& content) {
  constexpr uint32_t kNarrowestRow = 64;
  Piece& split = at(address);
  --split.own_copies;
  stored_by(by, &split, kWhole);
  split.copier = -1;
  split.filled = true;
  split.fillings = {};
  if (address - split.begin < kNarrowestRow) split.content = content;  // of its first row
}

void Memory::tell_arrival(int thread, uint32_t address, Moment arrival) {
  at(address).arrival = arrival;
  at(address).copier = thread;
}

void Memory::end_told_copy(uint32_t address) {
  Piece& split = at(address);
  --split.own_copies;
  for (Read& read : split.reads) read.copied_over = true;
  split.filled = true;
}

void Memory::end_thread_copy(uint32_t address, Content content) {
  Piece& split = at(address);
  constexpr uint32_t kRowBytes = 128;  // the widest
  content.row -= int((address - split.begin) / kRowBytes);
  copied(&split, content);
}

void Memory::end_copy(uint32_t address, int bytes,
                      const std::function<Content(int offset)>& content) {
  for_pieces(address, bytes, [&](Piece& split) {
    copied(&split, content(int(std::max(split.begin, address) - address)));
  });
}

void Memory::copied(Piece* split, const Content& content) {
  split->arriving = false;
  split->filled = true;
  split->fillings = {};
  split->content = content;
}

void Memory::store(const Accessor& by, uint32_t address) {
  const Buffer range = range_of_threads(address, "a store");
  const int strip = strip_of(range, address);
  for_pieces(range.address, range.bytes, [&](Piece& split) {
    require_unread(by, split, "a store", strip);
    require_arrived(by, split, "a store");
    split.copier = -1;
    stored_by(by, &split, strip);
    if (kAllLanes) split.filled = true;
    if (!range.in_place) fill(&split, strip);
  });
}

// Anew, where somebody has read what threads filled before.
void Memory::fill(Piece* split, int strip) {
  Filling& filling = split->fillings[size_t(std::max(strip, 0))];
  if (filling.number == 0 || filling.read) ++filling.number;
  filling.read = false;
  split->filled = true;
  split->content = {.filling = filling.number};
}

// Who has been told of another's store there has told of it since, and fenced it with its own.
void Memory::stored_by(const Accessor& by, Piece* split, int strip) {
  for (int w = 0; w < kMostThreads; ++w) {
    Stored& other = split->stored[size_t(w)];
    if (meet(strip, other.strip) && by.knows_of(w, other.time)) other = {};
  }
  split->stored[size_t(by.thread)] = {.time = by.now().time, .strip = strip};
  unfenced_[size_t(by.thread)].push_back(int(split - splits_.data()));
}

const Content& Memory::load(const Accessor& by, uint32_t address) {
  const Buffer range = range_of_threads(address, "a load");
  const int strip = strip_of(range, address);
  for_pieces(range.address, range.bytes, [&](Piece& split) {
    require_filled(by, split, strip);
    Read& read = split.reads[size_t(by.thread)];
    read.strip = read.time == 0 || read.strip == strip ? strip : kWhole;
    read.time = by.now().time;
    read.copied_over = false;
    split.fillings[size_t(std::max(strip, 0))].read = true;
  });
  return at(address).content;
}

void Memory::fence(const Accessor& by) {
  for (int index : unfenced_[size_t(by.thread)]) {
    Stored& stored = splits_[size_t(index)].stored[size_t(by.thread)];
    if (stored.time > 0 && stored.fenced == 0) stored.fenced = by.now().time;
  }
  unfenced_[size_t(by.thread)].clear();
  known_at_fence_[size_t(by.thread)] = by.knows;
}

const Content& Memory::begin_read(const Accessor& by, uint32_t address, int bytes,
                                  HeldPieces* held) {
  for_pieces(address, bytes, [&](Piece& split) {
    require_filled(by, split);
    require_fenced(by, split);
    Read& read = split.reads[size_t(by.thread)];
    ++read.open;
    read.copied_over = false;
    read_by_all(&split);
    held->push_back(int(&split - splits_.data()));
  });
  return at(address).content;
}

void Memory::end_reads(const Accessor& by, HeldPieces* held) {
  for (int index : *held) {
    Read& read = splits_[size_t(index)].reads[size_t(by.thread)];
    --read.open;
    read.time = by.now().time;
    read.strip = kWhole;
  }
  held->clear();
}

void Memory::read_by_all(Piece* split) {
  for (Filling& filling : split->fillings) filling.read = true;
}

std::vector<Content> Memory::begin_send(const Accessor& by, uint32_t address, int bytes,
                                        Moment arrival) {
  if (address % kPieceBytes != 0) fail("sent from ", place(address), ", not of a whole 1 KB");
  std::vector<Content> contents;
  for_pieces(address, bytes, [&](Piece& split) {
    require_filled(by, split);
    require_fenced(by, split);
    read_by_all(&split);
    std::erase_if(split.sends, [&](const Moment& sent) { return by.knows.has(sent); });
    split.sends.push_back(arrival);
    if ((split.begin - address) % kPieceBytes == 0) contents.push_back(split.content);
  });
  return contents;
}

}  // namespace fa3::machine
