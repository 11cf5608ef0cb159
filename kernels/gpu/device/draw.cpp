// The tokens of rows of logits: the likeliest ones, or drawn as compute/sample draws them, bit for bit. A work-group
// per row.
#include "common.hpp"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A number in the order of floats. -inf is 0, NaN and +inf are ~0.
MR_INLINE uint32_t order_of(float x) {
  constexpr uint32_t kBits = 0x7f800000u;                    // of +inf
  const uint32_t bits = sycl::bit_cast<uint32_t>(x + 0.0f);  // one zero
  if ((bits & ~(1u << 31)) > kBits || bits == kBits) return ~0u;
  return bits >> 31 ? ~bits - (~0u - (kBits | 1u << 31)) : bits + kBits + 1;
}

// The place of the largest of n numbers, of equal ones the first; -1 if one is NaN or +inf, or all are -inf.
template <class Number>
MR_INLINE int largest(const Item& item, int n, const Number& number) {
  uint64_t best = 0;  // the order of a number, then its place from the last one
  for (int i = item.get_local_id(0); i < n; i += mr::kDrawItems) {
    const uint64_t key = uint64_t{order_of(number(i))} << 32 | static_cast<uint32_t>(~i);
    best = key > best ? key : best;
  }
  best = sycl::reduce_over_group(item.get_group(), best, sycl::maximum<uint64_t>());
  const auto order = static_cast<uint32_t>(best >> 32);
  return order == 0 || order == ~0u ? -1 : static_cast<int>(~static_cast<uint32_t>(best));
}

// ---- Weights: weigh of compute/sample/weights.go, with its constants

constexpr float kOctavesPerNat = 1.44269504088896340735992468100f;
constexpr float kFarOctaves = 45 - 0x1p-18f;

MR_INLINE uint64_t weigh(float distance) {
  const float x = distance * kOctavesPerNat;
  if (!(x < kFarOctaves)) return 0;
  const int k = static_cast<int>(x);
  const float f = x - static_cast<float>(k);
  float p = f * 0x1.e2025cp-14f;
  p = f * (-0x1.529848p-10f + p);
  p = f * (0x1.3a79c4p-7f + p);
  p = f * (-0x1.c6a652p-5f + p);
  p = f * (0x1.ebfba8p-3f + p);
  p = f * (-0x1.62e43p-1f + p);
  return static_cast<uint64_t>(static_cast<int32_t>((1 + p) * 0x1p30f)) << 14 >> k;
}

// The share of a sum, which is a fraction of 2^64: the upper half of the product.
MR_INLINE uint64_t part(uint64_t sum, uint64_t share) {
  const uint64_t a = sum >> 32, b = sum & ~0u, c = share >> 32, d = share & ~0u;
  const uint64_t low = b * c + (b * d >> 32);  // below 2^64
  const uint64_t middle = a * d + (low & ~0u);
  return a * c + (low >> 32) + (middle >> 32);
}

// ---- Local memory, in words

MR_INLINE uint32_t fetch_add(uint32_t& word, uint32_t x) {
  return sycl::atomic_ref<uint32_t, sycl::memory_order::relaxed, sycl::memory_scope::work_group,
                          sycl::access::address_space::local_space>(word)
      .fetch_add(x);
}

struct Local {
  uint32_t* words;  // [mr::kDrawLocalWords]

  MR_INLINE uint32_t& low(int i) const { return words[i]; }
  MR_INLINE uint32_t& high(int i) const { return words[mr::kDrawItems + i]; }
  MR_INLINE uint32_t& key(int i) const { return words[2 * mr::kDrawItems + i]; }
  MR_INLINE uint32_t& id(int i) const { return words[3 * mr::kDrawItems + i]; }
  MR_INLINE uint32_t& note(int i) const { return words[4 * mr::kDrawItems + i]; }  // [8]

  // Sums, whose order does not matter. Not all devices have atomics of 64 bits.
  MR_INLINE uint64_t sum(int i) const { return uint64_t{high(i)} << 32 | low(i); }
  MR_INLINE void set_sum(int i, uint64_t x) const {
    low(i) = static_cast<uint32_t>(x);
    high(i) = static_cast<uint32_t>(x >> 32);
  }
  MR_INLINE void add(int i, uint64_t x) const {
    const auto lower = static_cast<uint32_t>(x);
    const uint32_t before = fetch_add(low(i), lower);
    const uint32_t above = static_cast<uint32_t>(x >> 32) + (before + lower < before ? 1u : 0u);
    if (above != 0) fetch_add(high(i), above);
  }
  MR_INLINE uint64_t noted(int i) const { return uint64_t{note(i + 1)} << 32 | note(i); }
  MR_INLINE void set_noted(int i, uint64_t x) const {
    note(i) = static_cast<uint32_t>(x);
    note(i + 1) = static_cast<uint32_t>(x >> 32);
  }
};

// ---- Which tokens may be drawn

struct Row {
  const float* logits;
  const uint32_t* mask;  // or null
  float top, per_nat;

  MR_INLINE float logit(int i) const {
    return mask != nullptr && (mask[i / 32] >> i % 32 & 1) == 0 ? -kInfinity : logits[i];
  }
  MR_INLINE float distance(int i) const { return (top - logit(i)) * per_nat; }
};

// What ends the list of the tokens that may be drawn: a number of them, or a part of their weights.
struct Limit {
  bool counts;
  uint64_t wanted;    // tokens, or the fraction of the weights
  float least_logit;  // of the tokens that are weighed

  MR_INLINE uint64_t weight(const Row& row, int i) const {
    const float logit = row.logit(i);
    if (counts) return logit > -kInfinity;
    return logit < least_logit ? 0 : weigh((row.top - logit) * row.per_nat);
  }
  // Tokens are in the order of their keys, and of their places where these are equal.
  MR_INLINE float key(const Row& row, int i) const {
    return counts ? -row.logit(i) : row.distance(i);
  }
  MR_INLINE uint64_t sum(uint64_t total) const {
    if (counts) return wanted;
    const uint64_t share = part(total, wanted);
    return share > 0 ? share : 1;
  }
};

// The last token that may be drawn.
struct Last {
  float key;
  int id;
};

constexpr int kPerOctave = 4, kBuckets = 45 * kPerOctave, kFine = mr::kDrawItems;

// Finds the token with which the weights reach the limit. Buckets by distance, in whose order keys are, and in one of them finer
// ones lead to few tokens. Where these are more than a work-group sorts, the result is false.
MR_INLINE bool find_last(const Item& item, const Row& row, int n, const Local& local,
                         const Limit& limit, Last& last) {
  const int me = item.get_local_id(0);
  // The place of a token in the buckets of a level. Beside the bucket of the level before it: -1.
  const auto bucket_of = [&](int i, int level, int before) {
    const float place =
        sycl::fmin(row.distance(i) * kOctavesPerNat, kFarOctaves) * static_cast<float>(kPerOctave);
    const auto coarse = static_cast<int>(place);
    if (level == 0) return coarse;
    if (coarse != before) return -1;
    return static_cast<int>((place - static_cast<float>(coarse)) * static_cast<float>(kFine));
  };
  int coarse = 0;
#pragma unroll 1
  for (int level = 0; level < 2; ++level) {
    local.set_sum(me, 0);
    sycl::group_barrier(item.get_group());
#pragma unroll 1
    for (int i = me; i < n; i += mr::kDrawItems) {
      const int bucket = bucket_of(i, level, coarse);
      if (bucket < 0) continue;
      if (const uint64_t w = limit.weight(row, i); w > 0) local.add(bucket, w);
    }
    sycl::group_barrier(item.get_group());
    if (me == 0) {
      const int buckets = level == 0 ? kBuckets : kFine;
      uint64_t before = 0;
      if (level == 0) {
        uint64_t total = 0;
#pragma unroll 1
        for (int b = 0; b < buckets; ++b) total += local.sum(b);
        local.set_noted(0, limit.sum(total));
        local.note(5) = 0;  // tokens in the list
      } else {
        before = local.noted(2);
      }
      const uint64_t wanted = local.noted(0);
      int b = 0;
#pragma unroll 1
      while (b < buckets - 1 && before + local.sum(b) < wanted) before += local.sum(b++);
      local.set_noted(2, before);
      local.note(4) = static_cast<uint32_t>(b);
    }
    sycl::group_barrier(item.get_group());
    const auto found = static_cast<int>(local.note(4));
    if (level == 0 && found == kBuckets - 1) return true;  // what is below has no weight
    if (level == 0) coarse = found;
  }
  const auto fine = static_cast<int>(local.note(4));
#pragma unroll 1
  for (int i = me; i < n; i += mr::kDrawItems) {
    if (bucket_of(i, 1, coarse) != fine || limit.weight(row, i) == 0) continue;
    const uint32_t to = fetch_add(local.note(5), 1);
    if (to >= mr::kDrawItems) continue;
    local.key(to) = sycl::bit_cast<uint32_t>(limit.key(row, i));
    local.id(to) = i;
  }
  sycl::group_barrier(item.get_group());
  const auto listed = static_cast<int>(local.note(5));
  if (listed > mr::kDrawItems) return false;
  if (me < listed) {
    const float mine = sycl::bit_cast<float>(local.key(me));
    const auto id = static_cast<int>(local.id(me));
    const uint64_t wanted = local.noted(0);
    uint64_t sum = local.noted(2);
#pragma unroll 1
    for (int i = 0; i < listed; ++i) {
      const float other = sycl::bit_cast<float>(local.key(i));
      const auto other_id = static_cast<int>(local.id(i));
      if (other < mine || (other == mine && other_id < id)) sum += limit.weight(row, other_id);
    }
    if (sum < wanted && sum + limit.weight(row, id) >= wanted) {
      local.note(6) = local.key(me);
      local.note(7) = local.id(me);
    }
  }
  sycl::group_barrier(item.get_group());
  last = {sycl::bit_cast<float>(local.note(6)), static_cast<int>(local.note(7))};
  sycl::group_barrier(item.get_group());
  return true;
}

// The token at which the sum of the weights, in the order of tokens, passes a fraction of 2^64 of all. Each round adds up
// parts of the tokens that are left, and continues with one of them.
template <class Weight>
MR_INLINE int pick(const Item& item, int n, const Local& local, const Weight& weight,
                   uint64_t fraction) {
  constexpr int kParts = 16, kItemsOfPart = mr::kDrawItems / kParts;
  const int me = item.get_local_id(0);
  int from = 0, left = n;
#pragma unroll 1
  for (bool first = true;; first = false) {
    const bool last = left <= kParts;
    const int each = last ? 1 : (left + kParts - 1) / kParts, parts = last ? left : kParts;
    local.set_sum(me, 0);
    sycl::group_barrier(item.get_group());
    const int begin = me / kItemsOfPart * each;
    const int end = begin + each < left ? begin + each : left;
    uint64_t sum = 0;
#pragma unroll 1
    for (int i = begin + me % kItemsOfPart; i < end; i += kItemsOfPart) sum += weight(from + i);
    if (sum > 0) local.add(me / kItemsOfPart, sum);
    sycl::group_barrier(item.get_group());
    if (me == 0) {
      uint64_t rest = 0;
      if (first) {
#pragma unroll 1
        for (int i = 0; i < parts; ++i) rest += local.sum(i);
        rest = part(rest, fraction);
      } else {
        rest = local.noted(0);
      }
      int chosen = 0;
#pragma unroll 1
      while (chosen < parts - 1 && local.sum(chosen) <= rest) rest -= local.sum(chosen++);
      local.set_noted(0, rest);
      local.note(2) = static_cast<uint32_t>(chosen);
    }
    sycl::group_barrier(item.get_group());
    const int begins = static_cast<int>(local.note(2)) * each;
    sycl::group_barrier(item.get_group());
    from += begins;
    if (last) return from;
    left = each < left - begins ? each : left - begins;
  }
}

// -1: the row's numbers are none to draw from, or the device does not say.
MR_INLINE int draw(const Item& item, Row row, int n, const Local& local, const mr::DrawEntry& d) {
  const int best = largest(item, n, [&](int i) { return row.logit(i); });
  if (best < 0 || d.per_nat == 0) return best;
  row.top = row.logit(best);
  float least_logit = -kInfinity;
  Last last{kInfinity, n};
#pragma unroll 1
  for (int by = 0; by < 2; ++by) {
    const bool counts = by == 0;
    if (counts ? d.top_k <= 0 || d.top_k >= n : d.top_p == 0) continue;
    const Limit limit{counts, counts ? static_cast<uint64_t>(d.top_k) : d.top_p, least_logit};
    Last found{kInfinity, n};
    if (!find_last(item, row, n, local, limit, found)) return -1;
    if (counts) {
      least_logit = -found.key;
    } else {
      last = found;
    }
  }
  const auto weight = [&](int i) {
    const float distance = row.distance(i);
    const bool in = distance < last.key || (distance == last.key && i <= last.id);
    if (!in || row.logit(i) < least_logit) return uint64_t{0};
    const uint64_t w = weigh(distance);
    return w < d.least ? uint64_t{0} : w;
  };
  return pick(item, n, local, weight, d.random);
}

}  // namespace

// out[row] = the place of the largest of n floats, of equal ones the first; -1 if one is NaN or +inf, or
// all are -inf.
MR_KERNEL mr_best(const float* in, int32_t* out, int32_t n) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t row = item.get_group(0);
  const int best = largest(item, n, [&](int i) { return in[row * n + i]; });
  if (item.get_local_id(0) == 0) out[row] = best;
}

// out[i] = the token of draws[i], or -1. Masks have a bit for each token, and whole words.
MR_KERNEL mr_draw(const float* logits, const mr::DrawEntry* draws, const uint32_t* masks,
                  int32_t* out, sycl::local_accessor<float, 1> memory, mr::DrawShape s) {
  MR_AFTER_PREVIOUS();
  const Item item = this_item();
  const int64_t i = item.get_group(0);
  const mr::DrawEntry d = draws[i];
  const Local local{
      reinterpret_cast<uint32_t*>(memory.get_multi_ptr<sycl::access::decorated::no>().get())};
  const uint32_t* mask = d.mask < 0 ? nullptr : masks + d.mask * ((int64_t{s.classes} + 31) / 32);
  const Row row{logits + d.row * int64_t{s.classes}, mask, 0, d.per_nat};
  const int token = draw(item, row, s.classes, local, d);
  if (item.get_local_id(0) == 0) out[i] = token;
}
