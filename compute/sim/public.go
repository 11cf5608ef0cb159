package sim

// nvidia are GPUs without a backend here, to compare with. Products are dense: data sheets print
// twice as much for sparse matrices.
func nvidia() []Peak {
	return []Peak{
		// NVIDIA A100 Tensor Core GPU data sheet, 80 GB SXM.
		{ID: "a100-80gb", Name: "NVIDIA A100 80 GB SXM", GBps: 2039, TFLOPS: 312, TOPS: 624, Memory: 80},
		// NVIDIA H100 Tensor Core GPU data sheet and Hopper architecture white paper, SXM5. The H800
		// differs in its links only.
		{ID: "h100", Name: "NVIDIA H100 SXM", GBps: 3350, TFLOPS: 989.4, TOPS: 1978.9, Memory: 80},
		// NVIDIA H200 Tensor Core GPU data sheet, SXM.
		{ID: "h200", Name: "NVIDIA H200 SXM", GBps: 4800, TFLOPS: 989.4, TOPS: 1978.9, Memory: 141},
		// NVIDIA Ada GPU architecture white paper, appendix A: 16-bit products summed in 32 bits.
		{ID: "rtx-4090", Name: "NVIDIA GeForce RTX 4090", GBps: 1008, TFLOPS: 165.2, TOPS: 660.6, Memory: 24},
	}
}

// Operations of a processor core per clock on 16-bit numbers, a product and its sum counted as two;
// twice that on 8-bit integers.
const (
	amx  = 1024 // Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX
	zen4 = 64   // Software Optimization Guide for the AMD Zen 4 Microarchitecture: a 512-bit VDPBF16PS
	zen5 = 128  // Software Optimization Guide for the AMD Zen 5 Microarchitecture: two of them
)

// socket is a processor: its cores, their operations per clock and the base clock of its product
// page, in GHz. Bandwidth is that of its DDR5 channels at megatransfers per second, 8 bytes each;
// memory is one module of 64 GB for each channel.
func socket(id, name string, cores, perClock, ghz, channels, megatransfers float64) Peak {
	return Peak{
		ID: id, Name: name, GBps: channels * megatransfers * 8 / 1e3, Memory: channels * 64,
		TFLOPS: cores * perClock * ghz / 1e3, TOPS: 2 * cores * perClock * ghz / 1e3,
	}
}

// processors are single sockets. Cores, base clock, channels and speed of the memory come from the
// product pages of Intel (ark.intel.com) and AMD (amd.com).
func processors() []Peak {
	return []Peak{
		socket("xeon-8592", "Intel Xeon Platinum 8592+", 64, amx, 1.9, 8, 5600),
		// With DDR5 modules: with MRDIMMs of 8800 MT/s it has 844.8 GB/s.
		socket("xeon-6980p", "Intel Xeon 6980P", 128, amx, 2.0, 12, 6400),
		socket("epyc-9654", "AMD EPYC 9654", 96, zen4, 2.4, 12, 4800),
		socket("epyc-9755", "AMD EPYC 9755", 128, zen5, 2.7, 12, 6400),
	}
}
