// An arena serves its plan and nothing else; the books stay right; a frozen thread is handed nothing.
#include "mem/arena.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "base/error.h"

namespace h3s::test {
namespace {

using mem::Accountant;
using mem::Buffer;
using mem::Space;

// What the tests replay: a stays, b and c follow each other in the same bytes, d is pinned.
mem::Placement small_placement() {
  mem::Recording recording;
  Accountant books(mem::make_dry_allocator());
  books.observe(std::ref(recording));
  const Buffer a = books.allocate(Space::kDevice, 1000, "a");
  { const Buffer b = books.allocate(Space::kDevice, 3000, "b"); }
  const Buffer c = books.allocate(Space::kDevice, 2000, "c");
  const Buffer d = books.allocate(Space::kPinned, 10, "d");
  books.observe({});
  return mem::place(recording.buffers());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

class Arenas : public testing::Test {
 protected:
  Accountant books_{mem::make_heap_allocator(/*poison=*/true)};
};

TEST_F(Arenas, TakeOneBlockASpaceAndReplay) {
  {
    mem::Arena arena(books_, small_placement(), "test");
    EXPECT_EQ(books_.report(Space::kDevice).reserved_bytes, 1024 + 3072);
    EXPECT_EQ(books_.report(Space::kPinned).reserved_bytes, 256);
    EXPECT_EQ(books_.current_bytes(Space::kDevice), 0);
    const Buffer a = arena.allocate(Space::kDevice, 1000, "a");
    const void* first = nullptr;
    {
      const Buffer b = arena.allocate(Space::kDevice, 3000, "b");
      first = b.data();
      EXPECT_EQ(books_.current_bytes(Space::kDevice), 1024 + 3072);
    }
    const Buffer c = arena.allocate(Space::kDevice, 2000, "c");
    const Buffer d = arena.allocate(Space::kPinned, 10, "d");
    EXPECT_EQ(c.data(), first);
    EXPECT_EQ(c.as<unsigned char>()[1999], 0xFF) << "handed out again without poison";
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(c.data()) % mem::kAlignment, 0u);
    EXPECT_EQ(books_.report(Space::kDevice).peak_reserved_bytes, books_.peak_bytes(Space::kDevice));
    arena.require_within_plan("the test");
  }
  for (const Space space : mem::kSpaces) EXPECT_EQ(books_.report(space).reserved_bytes, 0);
}

TEST_F(Arenas, RefuseWhatWasNotPlannedAndNameIt) {
  mem::Arena arena(books_, small_placement(), "test");
  const auto text = error_of([&] { arena.allocate(Space::kDevice, 1001, "a"); });
  EXPECT_EQ(
      text,
      "[arena] request 1 was planned as 1000 B of device memory for a, got 1001 B of device memory for a");
  EXPECT_NE(error_of([&] { arena.allocate(Space::kPinned, 1000, "a"); }), "");
  EXPECT_NE(error_of([&] { arena.allocate(Space::kDevice, 1000, "z"); }), "");
  const Buffer a = arena.allocate(Space::kDevice, 1000, "a");
  Buffer b = arena.allocate(Space::kDevice, 3000, "b");
  const auto held = error_of([&] { arena.allocate(Space::kDevice, 2000, "c"); });
  EXPECT_NE(held.find("needs the bytes of b"), std::string::npos) << held;
  b = Buffer();
  const Buffer c = arena.allocate(Space::kDevice, 2000, "c");
  const Buffer d = arena.allocate(Space::kPinned, 10, "d");
  const auto beyond = error_of([&] { arena.allocate(Space::kHost, 1, "e"); });
  EXPECT_NE(beyond.find("request 5, and 4 were planned"), std::string::npos) << beyond;
}

TEST_F(Arenas, RewindToRunAPartAgain) {
  mem::Arena arena(books_, small_placement(), "test");
  const Buffer a = arena.allocate(Space::kDevice, 1000, "a");
  const std::size_t position = arena.position();
  for (int i = 0; i < 3; ++i) {
    arena.rewind(position);
    Buffer b = arena.allocate(Space::kDevice, 3000, "b");
    EXPECT_NE(error_of([&] { arena.rewind(position); }), "") << "b is held";
  }
}

TEST_F(Arenas, KeepWithinTheBudget) {
  books_.set_budget(Space::kDevice, 1024 + 3072);
  { mem::Arena arena(books_, small_placement(), "test"); }
  books_.set_budget(Space::kDevice, 1024 + 3071);
  const auto text = error_of([&] { mem::Arena arena(books_, small_placement(), "test"); });
  EXPECT_NE(text.find("budget 4095 B cannot hold 4096 B for test"), std::string::npos) << text;
  EXPECT_EQ(books_.report(Space::kDevice).reserved_bytes, 0);
}

// Refuses one space, as a system without memory does.
class Refusing final : public mem::RawAllocator {
 public:
  explicit Refusing(Space space) : space_(space) {}
  void* allocate(Space space, std::int64_t bytes) override {
    if (space == space_) fail(Status::kOverBudget, "[mem] no memory");
    return heap_->allocate(space, bytes);
  }
  void release(Space space, void* data, std::int64_t bytes) noexcept override {
    heap_->release(space, data, bytes);
  }

 private:
  Space space_;
  std::unique_ptr<mem::RawAllocator> heap_ = mem::make_heap_allocator();
};

TEST_F(Arenas, ASpaceTheSystemRefusesIsNamedAndTheOthersAreGivenBack) {
  Accountant books(std::make_unique<Refusing>(Space::kPinned));
  try {
    mem::Arena arena(books, small_placement(), "test");
    FAIL() << "not refused";
  } catch (const mem::Refused& e) {
    EXPECT_EQ(e.space(), Space::kPinned);
    EXPECT_EQ(e.status(), Status::kOverBudget);
  }
  EXPECT_EQ(books.report(Space::kDevice).reserved_bytes, 0);
}

TEST_F(Arenas, AFrozenThreadIsHandedNothing) {
  mem::Arena arena(books_, small_placement(), "test");
  {
    const Accountant::Freeze freeze(books_, "a forward");
    for (const auto& request : {std::function<void()>([&] { arena.allocate(Space::kDevice, 1000, "a"); }),
                                std::function<void()>([&] { books_.allocate(Space::kHost, 1000, "a"); })})
      EXPECT_EQ(error_of(request).find("[mem] a asked for 1000 B of"), 0u);
    // Other books and other threads are free to go on.
    Accountant others(mem::make_heap_allocator());
    EXPECT_NO_THROW(others.allocate(Space::kHost, 1, "other"));
    std::thread([&] { EXPECT_NO_THROW(books_.allocate(Space::kHost, 1, "elsewhere")); }).join();
  }
  EXPECT_NO_THROW(arena.allocate(Space::kDevice, 1000, "a"));
}

TEST_F(Arenas, AddressesAreKnownByTheirOwner) {
  mem::Arena arena(books_, small_placement(), "test");
  const Buffer a = arena.allocate(Space::kDevice, 1000, "a");
  const Buffer outside = books_.allocate(Space::kHost, 100, "outside");
  const auto owner = books_.owner_of(a.as<std::byte>() + 999);
  ASSERT_TRUE(owner);
  EXPECT_EQ(owner->space, Space::kDevice);
  EXPECT_EQ(*owner->tag, "a");
  EXPECT_EQ(*books_.owner_of(outside.data())->tag, "outside");
  EXPECT_FALSE(books_.owner_of(a.as<std::byte>() + 1000));
  EXPECT_FALSE(books_.owner_of(&arena));
}

}  // namespace
}  // namespace h3s::test
