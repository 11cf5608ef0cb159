package simulate

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Print writes the study for people.
func (r *Study) Print(out io.Writer) error {
	fmt.Fprintf(out, "SIMULATED, not a measurement: %s (%s) on %d x %s, KV cache of %d slabs each\n", r.Model, r.Weights, r.Workers,
		r.Device.String(), r.KVSlabs)
	w := &r.Workload
	fmt.Fprintf(out, "%d requests, seed %d; prompts %s, answers %s\n\n", w.Requests, w.Seed, lengths(w.Prompt), lengths(w.Output))
	runs := r.trials()
	if err := printRuns(out, runs); err != nil {
		return err
	}
	if slices.ContainsFunc(runs, func(t Trial) bool { return t.Prefill > 0 }) {
		if err := printDivisions(out, runs); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(runs, func(t Trial) bool { return t.Admission != runs[0].Admission || t.Admission == Spill }) {
		if err := printAdmissions(out, runs); err != nil {
			return err
		}
	}
	for _, run := range runs {
		if len(run.Slices) > 0 {
			if err := printSlices(out, run.Slices); err != nil {
				return err
			}
		}
	}
	if r.Found == nil {
		return nil
	}
	if r.Found.QPS == 0 {
		_, err := fmt.Fprintf(out, "\nno rate holds TTFT %v and TPOT %v: not even %g/s\n", r.SLO.TTFT, r.SLO.TPOT, runs[len(runs)-1].QPS)
		return err
	}
	_, err := fmt.Fprintf(out, "\nlargest rate that holds TTFT %v and TPOT %v: %.4g/s, %.4g/s for each worker\n",
		r.SLO.TTFT, r.SLO.TPOT, r.Found.QPS, r.Found.QPS/float64(r.Workers))
	return err
}

func lengths(l LogNormal) string {
	if l.Sigma == 0 {
		return fmt.Sprintf("of %g tokens", l.Mean)
	}
	return fmt.Sprintf("log-normal (mean %g, sigma %g, at most %d tokens)", l.Mean, l.Sigma, l.Max)
}

// printAdmissions prints the KV memory of each run.
func printAdmissions(out io.Writer, runs []Trial) error {
	fmt.Fprintln(out, "\nKV memory: sequences, slabs and reserved are means of the time in which requests wait")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w,
		"QPS\tadmission\ttokens/s\tsequences\tslabs with tokens\treserved\tof the time\tpaused\tpreempted\tslabs spilled\trestores\ttokens recomputed\t")
	for _, r := range runs {
		m := r.Waiting
		fmt.Fprintf(w, "%.4g\t%s\t%.0f\t%.0f\t%.1f%%\t%.1f%%\t%.0f%%\t%.2f%%\t%d\t%d\t%d\t%d\t\n",
			r.QPS, r.Admission, r.TokensPerSecond, m.Sequences, 100*m.Held, 100*m.Reserved, 100*m.Share, 100*r.Paused, r.Preempted,
			r.Tier.Slabs, r.Tier.Restores, r.Recomputed)
	}
	return w.Flush()
}

// printDivisions prints the latencies of prefill and decode workers beside those of compute workers.
func printDivisions(out io.Writer, runs []Trial) error {
	fmt.Fprintln(out, "\nprefill and decode: a gap is the time between two tokens of an answer")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "QPS\tadmission\tworkers\tTTFT ms: p50\tp95\tp99\tgap ms: p50\tp95\tp99\ttokens/s\thand-overs\ttokens recomputed\t")
	for _, r := range runs {
		fmt.Fprintf(w, "%.4g\t%s\t%s\t%s\t%s\t%.0f\t%d\t%d\t\n",
			r.QPS, r.Admission, r.Division(), milliseconds(r.TTFT), milliseconds(r.Gap), r.TokensPerSecond, r.Handovers, r.Recomputed)
	}
	return w.Flush()
}

func printRuns(out io.Writer, runs []Trial) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w,
		"QPS\tadmission\tserved/s\tgood/s\trefused\tTTFT ms: p50\tp95\tp99\tTPOT ms: p50\tp95\tp99\ttokens/s\tbatch\tbusy\tbandwidth\tKV mean\tmax\tcost per M\t")
	for _, r := range runs {
		fmt.Fprintf(w, "%.4g\t%s\t%.4g\t%.4g\t%d\t%s\t%s\t%.0f\t%.1f\t%.0f%%\t%.0f%%\t%.0f%%\t%.0f%%\t%.3g\t\n",
			r.QPS, r.Admission, r.ServedQPS, r.GoodQPS, r.RefusedSum(), milliseconds(r.TTFT), milliseconds(r.TPOT), r.TokensPerSecond,
			r.DecodeRows,
			100*r.Busy, 100*r.Bandwidth, 100*r.KVMean, 100*r.KVMax, r.CostPerMillion)
	}
	return w.Flush()
}

func printSlices(out io.Writer, parts []Slice) error {
	fmt.Fprintln(out, "\nby tenths of the arrivals")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "QPS\trequests\tgood\trefused\tTTFT ms: p50\tp95\tp99\tTPOT ms: p50\tp95\tp99\t")
	for _, s := range parts {
		fmt.Fprintf(w, "%.4g\t%d\t%d\t%d\t%s\t%s\t\n", s.QPS, s.Requests, s.Good, s.RefusedSum(), milliseconds(s.TTFT),
			milliseconds(s.TPOT))
	}
	return w.Flush()
}

func milliseconds(q Quantiles) string {
	return fmt.Sprintf("%.4g\t%.4g\t%.4g", 1e3*q.P50, 1e3*q.P95, 1e3*q.P99)
}
