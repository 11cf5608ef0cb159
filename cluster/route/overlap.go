package route

// cheapest returns the worker with the lowest cost. Among equals it is the one with the smallest cache, so that conversations
// spread over the memory of all, and among these one drawn at random, since several gateways may see the same loads.
func (r *Router) cheapest(q *Query, workers []Worker) int {
	best, least, equals := -1, 0.0, 0
	for _, i := range r.usable {
		cost := r.cfg.cost(q, &workers[i])
		switch {
		case best < 0 || cost < least || cost == least && workers[i].Blocks < workers[best].Blocks:
			best, least, equals = i, cost, 1
		case cost == least && workers[i].Blocks == workers[best].Blocks:
			equals++
			if r.random.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

// cost weighs what a worker has to compute of a prompt against its load, in units of Load (as the router of NVIDIA Dynamo,
// which adds blocks to prefill and blocks in use). A worker without room for the sequence costs as much as a full batch more.
func (c Config) cost(q *Query, w *Worker) float64 {
	missing := float64(q.Blocks - w.Overlap)
	cost := w.Load() + c.Prefill*missing/float64(max(q.Blocks, c.ShortPrompt, 1)) + missing/float64(max(c.LongPrefill, 1))
	if !w.fits(q.Slabs - w.Overlap) {
		cost++
	}
	return cost
}
