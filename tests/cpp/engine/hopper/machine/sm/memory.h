// SPDX-License-Identifier: Apache-2.0
//
// Shared memory: what lies where, and who may touch it. It is watched in splits of 1 KB (8 rows of
// 128 bytes, or 16 of 64), split where a buffer that the test names begins or ends. Of each split
// it knows who wrote it, who has read it and who still does, and holds every access against the
// clock (clock.h) of the warp that makes it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "clock.h"
#include "machine.h"

namespace fa3::machine {

// The thread of a CTA that makes an access, and what it knows.
struct Accessor {
  int thread, cta;
  const Clock& knows;
  Moment now() const { return knows.now(actor_of_thread(cta, thread)); }
  bool knows_of(int other, int time) const {
    return knows.has({actor_of_thread(cta, other), time});
  }
};

constexpr uint32_t kPieceBytes = 1024;  // of a split whose buffer does not end within it

// Splits that an instruction still reads, once for each reading.
using HeldPieces = std::vector<int>;

class Memory {
 public:
  explicit Memory(const std::vector<Buffer>& buffers);

  // A copy into shared memory, over when `arrival` is known; end_copy: its bytes are there.
  void begin_copy(const Accessor& by, uint32_t address, int bytes, Moment arrival);
  void end_copy(uint32_t address, int bytes, const std::function<Content(int offset)>& content);

  // A copy by threads, whose first lane copies to this address: counts for its split. Over when the
  // arrival is known that tell_arrival() names; end_thread_copy: the bytes are there.
  void begin_thread_copy(const Accessor& by, uint32_t address);
  void tell_arrival(int thread, uint32_t address, Moment arrival);
  void end_thread_copy(uint32_t address, Content content);

  // A copy of a lane. Its own wait makes the bytes known, as its stores are; or an arrival that
  // tell_arrival() names, and then end_told_copy: the bytes are there.
  void begin_own_copy(const Accessor& by, uint32_t address);
  void end_own_copy(const Accessor& by, uint32_t address, const Content& content);
  void end_told_copy(uint32_t address);

  // An ordinary store or load: of a warp, it counts for the whole buffer that its first lane meets;
  // of a lane, for the 16 bytes around the address. Returns what lies there.
  void store(const Accessor& by, uint32_t address);
  const Content& load(const Accessor& by, uint32_t address);

  // What this thread has stored may be read by wgmma and TMA, by those who are told later;
  // and by its own products what threads have copied that it was told of.
  void fence(const Accessor& by);

  // wgmma or TMA reads, until end_reads. Returns what lies at the address.
  const Content& begin_read(const Accessor& by, uint32_t address, int bytes, HeldPieces* held);
  void end_reads(const Accessor& by, HeldPieces* held);

  // TMA reads for another CTA, until it is known to have got all. Returns what lies in each piece.
  std::vector<Content> begin_send(const Accessor& by, uint32_t address, int bytes, Moment arrival);

 private:
  // The strip of a buffer that an access is to.
  static constexpr int kWhole = -1, kMostStrips = 4;
  static bool meet(int strip, int other) {
    return strip == kWhole || other == kWhole || strip == other;
  }

  struct Stored {
    int time = 0;    // of the thread's last store; 0: none
    int fenced = 0;  // when its fence had max-tracking; 0: not yet
    int strip = kWhole;
  };
  struct Read {
    int time = 0;  // of the thread's last reading; 0: none
    int open = 0;  // readings that are not over
    int strip = kWhole;
    bool copied_over = false;  // by copiers who knew of it; their arrival is told
  };
  struct Filling {
    int number = 0;  // 0: none since the last copy
    bool read = false;
  };
  struct Piece {
    uint32_t begin = 0, end = 0;
    Content content;
    bool filled = false, arriving = false;
    std::array<Filling, kMostStrips> fillings;  // by threads
    Moment arrival;                             // of the last copy
    int copier = -1;                            // the warp whose threads made it, or none
    int own_copies = 0;                         // of lanes, that they have not waited for
    std::array<Stored, kMostThreads> stored;
    std::array<Read, kMostThreads> reads;
    std::vector<Moment> sends;  // when they are over
  };

  Piece& at(uint32_t address);
  void stored_by(const Accessor& by, Piece* split, int strip);
  static void fill(Piece* split, int strip);
  static void copied(Piece* split, const Content& content);
  static void read_by_all(Piece* split);
  Buffer range_of_threads(uint32_t address, const char* access) const;
  static int strip_of(const Buffer& range, uint32_t address);
  void require_unread(const Accessor& by, const Piece& split, const char* access,
                      int strip = kWhole) const;
  void require_arrived(const Accessor& by, const Piece& split, const char* access) const;
  void require_filled(const Accessor& by, const Piece& split, int strip = kWhole) const;
  void require_fenced(const Accessor& by, const Piece& split) const;
  template <class Action>
  void for_pieces(uint32_t address, int bytes, const Action& action);

  std::vector<Buffer> buffers_;
  std::vector<Piece> splits_;
  std::vector<int> piece_of_unit_;
  std::array<std::vector<int>, kMostThreads> unfenced_;
  std::array<Clock, kMostThreads> known_at_fence_;
};

}  // namespace fa3::machine
