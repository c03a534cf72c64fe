// Kernels on single rows: norms, activations as int8, exp, RoPE, cache elements (part of
// kernels.inl.hpp).

/// p[0..n), zero behind; n < 16.
DECANT_VEC F f_load_part(const float* p, int n) {
  float v[16] = {};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return f_load(v);
}
DECANT_VEC void f_store_part(float* p, F a, int n) {
  float v[16];
  f_store(v, a);
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

/// 1 / sqrt(mean of squares + eps), lane sums over index mod 16.
DECANT_KERNEL float rms_scale(const float* x, int n, float eps) {
  F sum = f_set(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const F v = f_load(x + i);
    sum = f_fma(v, v, sum);
  }
  if (i < n) {
    const F v = f_load_part(x + i, n - i);
    sum = f_fma(v, v, sum);
  }
  return 1.0f / __builtin_sqrtf(f_sum(sum) / static_cast<float>(n) + eps);
}
DECANT_KERNEL void scale_by(const float* x, const float* weight, float scale, const float* add,
                            int n, float* to) {
  const F s = f_set(scale);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const F y = f_mul(f_mul(f_load(x + i), s), f_load(weight + i));
    f_store(to + i, add == nullptr ? y : f_add(f_load(add + i), y));
  }
  if (i < n) {
    const F y = f_mul(f_mul(f_load_part(x + i, n - i), s), f_load_part(weight + i, n - i));
    f_store_part(to + i, add == nullptr ? y : f_add(f_load_part(add + i, n - i), y), n - i);
  }
}
DECANT_KERNEL void add_rows(const float* x, const float* y, int n, float* to) {
  int i = 0;
  for (; i + 16 <= n; i += 16) f_store(to + i, f_add(f_load(x + i), f_load(y + i)));
  for (; i < n; ++i) to[i] = x[i] + y[i];
}
DECANT_KERNEL void norm(const NormArgs& a) {
  if (a.output == nullptr) {
    __builtin_memcpy(a.sum, a.residual, static_cast<std::size_t>(a.n) * sizeof(float));
  } else if (a.post_weight == nullptr) {
    add_rows(a.residual, a.output, a.n, a.sum);
  } else {
    scale_by(a.output, a.post_weight, rms_scale(a.output, a.n, a.eps), a.residual, a.n, a.sum);
  }
  scale_by(a.sum, a.weight, rms_scale(a.sum, a.n, a.eps), nullptr, a.n, a.y);
}
DECANT_KERNEL void head_norm(float* x, const float* weight, int n, float eps) {
  scale_by(x, weight, rms_scale(x, n, eps), nullptr, n, x);
}

DECANT_VEC I times_254(I a) { return i_sub(i_shl<8>(a), i_shl<1>(a)); }

/// Sixteen values times `id` to the nearest integers, at most +-Top.
template <int Top>
DECANT_VEC I rounded(F x, F id) {
  const F top = f_set(static_cast<float>(Top)), bottom = f_set(-static_cast<float>(Top));
  return i_round(f_max(f_min(f_mul(x, id), top), bottom));
}
DECANT_VEC void set_sums(ActBlock& block, std::int32_t s0, std::int32_t s1) {
  block.nsum = -(s0 + s1);
  block.nsum_half[0] = -s0;
  block.nsum_half[1] = -s1;
  block.dsum = block.d * static_cast<float>(s0 + s1);
  block.dsum_half[0] = block.d * static_cast<float>(s0);
  block.dsum_half[1] = block.d * static_cast<float>(s1);
  block.unused = 0;
}
/// Blocks with a value that is not finite get d = NaN, so that the row's outputs show it.
template <int Top>
DECANT_KERNEL void quantise_to(const float* x, int n, ActBlock* to) {
  constexpr bool kWide = Top > 127;
  for (int b = 0; b < n / kActBlock; ++b, to += kWide ? 2 : 1) {
    ActBlock& block = to[0];
    const F v0 = f_load(x + b * kActBlock), v1 = f_load(x + b * kActBlock + 16);
    const std::int32_t magnitude = i_highest(i_max(i_magnitude(v0), i_magnitude(v1)));
    float max;
    __builtin_memcpy(&max, &magnitude, sizeof max);
    const bool finite = magnitude < 0x7F800000;
    const F id = f_set(finite && max > 0.0f ? static_cast<float>(Top) / max : 0.0f);
    const I y0 = rounded<Top>(v0, id), y1 = rounded<Top>(v1, id);
    block.d = finite ? max / static_cast<float>(Top) : __builtin_nanf("");
    set_sums(block, i_sum(y0), i_sum(y1));
    if constexpr (!kWide) {
      i_store_i8(block.q, y0);
      i_store_i8(block.q + 16, y1);
    } else if constexpr (kWords) {
      store_words(to, y0, y1);
    } else {
      const F part = f_set(1.0f / 254);
      const I h0 = rounded<127>(f_from_i(y0), part), h1 = rounded<127>(f_from_i(y1), part);
      i_store_i8(block.q, h0);
      i_store_i8(block.q + 16, h1);
      i_store_i8(to[1].q, i_sub(y0, times_254(h0)));
      i_store_i8(to[1].q + 16, i_sub(y1, times_254(h1)));
    }
  }
}
DECANT_KERNEL void quantise(const float* x, int n, ActBlock* to) { quantise_to<127>(x, n, to); }
DECANT_KERNEL void quantise_wide(const float* x, int n, ActBlock* to) {
  quantise_to<127 * 254 + 127>(x, n, to);
}

/// The q of e^x = power (1 + r q), power = 2^k, for x in [-87.3, 88] (Cody & Waite reduction,
/// Taylor series).
DECANT_VEC F f_exp_series(F x, F& r, F& power) {
  const F magic = f_set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F k = f_sub(f_fma(x, f_set(1.44269504f), magic), magic);
  r = f_fma(k, f_set(-0.693359375f), x);
  r = f_fma(k, f_set(2.12194440e-4f), r);
  F q = f_set(1.0f / 5040);
  q = f_fma(q, r, f_set(1.0f / 720));
  q = f_fma(q, r, f_set(1.0f / 120));
  q = f_fma(q, r, f_set(1.0f / 24));
  q = f_fma(q, r, f_set(1.0f / 6));
  q = f_fma(q, r, f_set(0.5f));
  power = f_bits(i_shl<23>(i_add(i_round(k), i_set(127))));
  return f_fma(q, r, f_set(1.0f));
}
DECANT_VEC F f_exp_clamp(F x) { return f_max(f_min(x, f_set(88.0f)), f_set(-87.3f)); }

/// e^x within 2 ulp; 0 below -87.3, e^88 above 88.
DECANT_VEC F f_exp(F x) {
  F r, power;
  const F q = f_exp_series(f_exp_clamp(x), r, power);
  return f_select_less(x, f_set(-87.3f), f_set(0.0f), f_mul(f_fma(q, r, f_set(1.0f)), power));
}
DECANT_VEC float exp_one(float x) {
  float v[16];
  f_store(v, f_exp(f_set(x)));
  return v[0];
}

DECANT_VEC F activated(Activation activation, F x) {
  const F one = f_set(1.0f);
  if (activation == Activation::silu) return f_div(x, f_add(one, f_exp(f_sub(f_set(0.0f), x))));
  // 0.5 x (1 + tanh(u)) = x - x / (1 + e^2u) = x / (1 + e^-2u)
  const F cube = f_mul(f_mul(x, x), x);
  const F u = f_mul(f_set(0.79788456f), f_fma(f_set(0.044715f), cube, x));
  return f_div(x, f_add(one, f_exp(f_mul(f_set(-2.0f), u))));
}
DECANT_KERNEL void activate(Activation activation, const float* gate, const float* up, int n,
                            float* to) {
  int i = 0;
  for (; i + 16 <= n; i += 16)
    f_store(to + i, f_mul(activated(activation, f_load(gate + i)), f_load(up + i)));
  if (i < n)
    f_store_part(
        to + i,
        f_mul(activated(activation, f_load_part(gate + i, n - i)), f_load_part(up + i, n - i)),
        n - i);
}

/// x becomes cap tanh(x / cap) = cap (e^2u - 1) / (e^2u + 1); what is not finite stays. n is a
/// multiple of 16.
DECANT_KERNEL void soft_cap(float* x, int n, float cap) {
  const F one = f_set(1.0f), twice = f_set(2.0f / cap);
  for (int i = 0; i < n; i += 16) {
    const F v = f_load(x + i);
    F r, power;
    const F q = f_exp_series(f_exp_clamp(f_mul(v, twice)), r, power);
    const F less_one = f_fma(power, f_mul(r, q), f_sub(power, one));  // e^2u - 1, also near 0
    const F capped = f_mul(f_set(cap), f_div(less_one, f_add(less_one, f_set(2.0f))));
    f_store(x + i, f_select_less(f_mul(v, f_set(0.0f)), one, capped, v));
  }
}

/// RoPE in place: coordinate i becomes x[i] cos[i] + partner[i] sin[i], where the table has the
/// sines of first partners negated.
DECANT_KERNEL void rotate(float* x, const float* table, int dims, RopePairs pairs) {
  const float* const cos = table;
  const float* const sin = table + dims;
  int i = 0;
  if (pairs == RopePairs::neighbours) {
    for (; i + 16 <= dims; i += 16) {
      const F v = f_load(x + i);
      f_store(x + i, f_add(f_mul(v, f_load(cos + i)), f_mul(f_swap_pairs(v), f_load(sin + i))));
    }
    for (; i < dims; i += 2) {
      const float a = x[i], b = x[i + 1];
      x[i] = a * cos[i] + b * sin[i];
      x[i + 1] = b * cos[i + 1] + a * sin[i + 1];
    }
    return;
  }
  const int half = dims / 2;
  for (; i + 16 <= half; i += 16) {
    const F a = f_load(x + i), b = f_load(x + half + i);
    f_store(x + i, f_add(f_mul(a, f_load(cos + i)), f_mul(b, f_load(sin + i))));
    f_store(x + half + i,
            f_add(f_mul(b, f_load(cos + half + i)), f_mul(a, f_load(sin + half + i))));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] + b * sin[i];
    x[half + i] = b * cos[half + i] + a * sin[half + i];
  }
}

DECANT_KERNEL void divide(const float* x, float by, int n, float* to) {
  const F d = f_set(by);
  int i = 0;
  for (; i + 16 <= n; i += 16) f_store(to + i, f_div(f_load(x + i), d));
  for (; i < n; ++i) to[i] = x[i] / by;
}

/// Element i goes to element i * step of a page.
DECANT_KERNEL void store_kv(KvType type, const float* x, int n, int step, std::byte* to) {
  if (type == KvType::f32) {
    for (int i = 0; i < n; ++i)
      __builtin_memcpy(to + sizeof(float) * static_cast<std::size_t>(i * step), x + i,
                       sizeof(float));
    return;
  }
  for (int i = 0; i < n; i += 16) {
    std::uint16_t half[16];
    const int left = n - i < 16 ? n - i : 16;
    const F v = left == 16 ? f_load(x + i) : f_load_part(x + i, left);
    if (type == KvType::f16) {
      f_store_f16(half, v);
    } else {
      float lanes[16];
      f_store(lanes, v);
      for (int k = 0; k < 16; ++k) half[k] = f32_to_bf16(lanes[k]);
    }
    if (step == 1) {
      __builtin_memcpy(to + 2 * i, half, static_cast<std::size_t>(2 * left));
      continue;
    }
    for (int k = 0; k < left; ++k)
      __builtin_memcpy(to + 2 * static_cast<std::size_t>((i + k) * step), half + k, 2);
  }
}
