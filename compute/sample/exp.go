package sample

import "math"

// expNeg returns e^-x for x >= 0, 0 from x = 700, to a relative error of 1e-9.
//
// It is not math.Exp, whose last bit depends on whether the processor has
// fused multiply-add: tokens drawn here must not. The conversions keep the
// compiler from fusing. e^-x = 2^-q * 2^(-j/64) * e^r with n = 64q + j the
// whole part of 64x/ln 2 and r = n ln(2)/64 - x, -0.0109 < r <= 0.
func expNeg(x float64) float64 {
	if !(x < 700) {
		return 0
	}
	n := int64(x * (64 / math.Ln2))
	r := float64(float64(n)*(math.Ln2/64)) - x
	p := 0.5 + float64(r*(1.0/6))
	p = 1 + float64(r*p)
	p = 1 + float64(r*p)
	return p * math.Float64frombits(exp2Neg[n&63]-uint64(n>>6)<<52)
}

// widen is float64(x) for x >= 0, save that 0 (and -0) becomes 2^-127 and +Inf
// 2^128, which make no difference to expNeg. The instruction that float64(x) compiles to
// keeps half of its target register and so waits for the last use of it: in a loop
// around expNeg that makes one long chain, 8 times slower.
func widen(x float32) float64 {
	return math.Float64frombits(uint64(math.Float32bits(x)<<1)<<28 + (1023-127)<<52)
}

// exp2Neg[j] holds the bits of 2^(-j/64).
var exp2Neg = [64]uint64{
	0x3ff0000000000000, 0x3fefa7c1819e90d8, 0x3fef50765b6e4540, 0x3feefa1bee615a27,
	0x3feea4afa2a490da, 0x3fee502ee78b3ff6, 0x3fedfc97337b9b5f, 0x3feda9e603db3285,
	0x3fed5818dcfba487, 0x3fed072d4a07897c, 0x3fecb720dcef9069, 0x3fec67f12e57d14b,
	0x3fec199bdd85529c, 0x3febcc1e904bc1d2, 0x3feb7f76f2fb5e47, 0x3feb33a2b84f15fb,
	0x3feae89f995ad3ad, 0x3fea9e6b5579fdbf, 0x3fea5503b23e255d, 0x3fea0c667b5de565,
	0x3fe9c49182a3f090, 0x3fe97d829fde4e50, 0x3fe93737b0cdc5e5, 0x3fe8f1ae99157736,
	0x3fe8ace5422aa0db, 0x3fe868d99b4492ed, 0x3fe82589994cce13, 0x3fe7e2f336cf4e62,
	0x3fe7a11473eb0187, 0x3fe75feb564267c9, 0x3fe71f75e8ec5f74, 0x3fe6dfb23c651a2f,
	0x3fe6a09e667f3bcd, 0x3fe6623882552225, 0x3fe6247eb03a5585, 0x3fe5e76f15ad2148,
	0x3fe5ab07dd485429, 0x3fe56f4736b527da, 0x3fe5342b569d4f82, 0x3fe4f9b2769d2ca7,
	0x3fe4bfdad5362a27, 0x3fe486a2b5c13cd0, 0x3fe44e086061892d, 0x3fe4160a21f72e2a,
	0x3fe3dea64c123422, 0x3fe3a7db34e59ff7, 0x3fe371a7373aa9cb, 0x3fe33c08b26416ff,
	0x3fe306fe0a31b715, 0x3fe2d285a6e4030b, 0x3fe29e9df51fdee1, 0x3fe26b4565e27cdd,
	0x3fe2387a6e756238, 0x3fe2063b88628cd6, 0x3fe1d4873168b9aa, 0x3fe1a35beb6fcb75,
	0x3fe172b83c7d517b, 0x3fe1429aaea92de0, 0x3fe11301d0125b51, 0x3fe0e3ec32d3d1a2,
	0x3fe0b5586cf9890f, 0x3fe0874518759bc8, 0x3fe059b0d3158574, 0x3fe02c9a3e778061,
}
