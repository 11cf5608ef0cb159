package plan

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/compute/model"
)

// bar is the width of the longest bar of the chart, in characters.
const bar = 24

// Print writes the plan for people.
func (r *Report) Print(out io.Writer) error {
	kv := r.KVType
	if kv == model.KVAuto.String() {
		kv = "16 bits"
	}
	fmt.Fprintf(out, "%s\n%s: weights %s, KV cache (%s) %s bytes per token\n", r.Notice, r.Model, size(r.WeightBytes), kv,
		count(r.TokenBytes))
	fmt.Fprintf(out, "a request of %s + %s tokens", count(r.Prompt), count(r.Gen))
	if r.Beams > 1 {
		fmt.Fprintf(out, ", %d beams", r.Beams)
	}
	fmt.Fprintf(out, ": %s slabs, %s", count(r.RequestSlabs), size(r.RequestBytes))
	if r.Beams > 1 {
		fmt.Fprintf(out, "; %s if each beam kept the prompt", size(r.StandardBytes))
	}
	fmt.Fprintln(out)
	if len(r.Devices) == 1 {
		return r.printOne(out, &r.Devices[0])
	}
	return r.printDevices(out)
}

// printOne writes a row for each number of users, and the answer.
func (r *Report) printOne(out io.Writer, f *Fit) error {
	fmt.Fprintf(out, "%s (%s): %.0f GB/s, %.4g TFLOP/s", f.Device.ID, f.Device.Name, f.Device.GBps, f.Device.TFLOPS)
	if f.Device.Memory > 0 {
		fmt.Fprintf(out, ", %.0f GB", f.Device.Memory)
	}
	if f.Misfit != "" {
		_, err := fmt.Fprintf(out, "\n\nOn %s no request fits: %s.\n", f.Device.ID, f.Misfit)
		return err
	}
	fmt.Fprintf(out, "; KV cache of %s slabs, %s requests\n\n", count(f.Slabs), count(f.Requests))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	most := 0.0
	for _, p := range f.Users {
		most = max(most, p.TokensPerSecond)
	}
	fmt.Fprintf(w, "users\tKV cache\tTTFT s\tTPOT ms\ttokens/s each\ttokens/s all\t%s\t\n", priceHead(f.Price))
	for _, p := range f.Users {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t  %s\n", count(p.Users), size(p.KVBytes), short(p.TTFT), short(1e3*p.TPOT),
			short(p.Each()),
			short(p.TokensPerSecond), price(p.PricePerMillion), strings.Repeat("#", int(bar*p.TokensPerSecond/most+0.5)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return r.answer(out, f)
}

// priceHead is the title of the column of prices, "" without any.
func priceHead(perHour float64) string {
	if perHour == 0 {
		return ""
	}
	return "price per M"
}

// answer says how many users fit, and how many within the bound.
func (r *Report) answer(out io.Writer, f *Fit) error {
	last := &f.Users[len(f.Users)-1]
	fmt.Fprintf(out, "\nTTFT: of the last user, if all prompts arrive at once; the prompt of one takes %s s.\n", short(f.Prefill))
	if last.Users < f.Requests {
		fmt.Fprintf(out, "Memory has room for %s requests; times are computed for up to %s rows.\n", count(f.Requests), count(MostUsers))
	}
	fmt.Fprintf(out, "On %s %s at %s tokens each decode at %s tokens/s", f.Device.ID, users(last.Users), count(r.Prompt+r.Gen),
		short(last.Each()))
	switch {
	case r.TPOT == 0:
		fmt.Fprintln(out, ".")
	case f.Within == nil:
		fmt.Fprintf(out, ".\nNot even one stays within %s ms per token.\n", short(1e3*r.TPOT))
	case f.Within.Users == last.Users:
		fmt.Fprintf(out, ", within %s ms per token.\n", short(1e3*r.TPOT))
	default:
		fmt.Fprintf(out, ".\nWithin %s ms per token: %s, %s tokens/s each.\n", short(1e3*r.TPOT), users(f.Within.Users),
			short(f.Within.Each()))
	}
	if p := f.Within; p != nil && p.PricePerMillion > 0 {
		_, err := fmt.Fprintf(out, "A million tokens cost %s with %s.\n", short(p.PricePerMillion), users(p.Users))
		return err
	}
	return nil
}

// printDevices writes a row for each device at the most users within the bound.
func (r *Report) printDevices(out io.Writer) error {
	head := "users"
	if r.TPOT > 0 {
		head = fmt.Sprintf("users within %s ms", short(1e3*r.TPOT))
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "device\tGB\tGB/s\tTFLOP/s\trequests in memory\t%s\tTTFT s\ttokens/s each\ttokens/s all\t%s\t\n", head,
		priceHead(r.Devices[0].Price))
	for i := range r.Devices {
		f := &r.Devices[i]
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.4g\t", f.Device.ID, f.Device.Memory, f.Device.GBps, f.Device.TFLOPS)
		if f.Misfit != "" {
			fmt.Fprint(w, "0\t-\t-\t-\t-\t-\t\n")
			continue
		}
		fmt.Fprintf(w, "%s\t", count(f.Requests))
		if p := f.Within; p != nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", count(p.Users), short(p.TTFT), short(p.Each()), short(p.TokensPerSecond),
				price(p.PricePerMillion))
		} else {
			fmt.Fprint(w, "0\t-\t-\t-\t-\t\n")
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return r.compare(out)
}

// compare names the device with the most tokens per second, and the cheapest.
func (r *Report) compare(out io.Writer) error {
	var fastest, cheapest *Fit
	for i := range r.Devices {
		f := &r.Devices[i]
		if f.Within == nil {
			continue
		}
		if fastest == nil || f.Within.TokensPerSecond > fastest.Within.TokensPerSecond {
			fastest = f
		}
		if p := f.Within.PricePerMillion; p > 0 && (cheapest == nil || p < cheapest.Within.PricePerMillion) {
			cheapest = f
		}
	}
	if fastest == nil {
		_, err := fmt.Fprintln(out, "\nNo device serves even one user.")
		return err
	}
	fmt.Fprintf(out, "\nMost tokens: %s with %s, %s tokens/s.\n", fastest.Device.ID, users(fastest.Within.Users),
		short(fastest.Within.TokensPerSecond))
	if cheapest == nil {
		return nil
	}
	_, err := fmt.Fprintf(out, "Cheapest: %s, %s for a million tokens.\n", cheapest.Device.ID, short(cheapest.Within.PricePerMillion))
	return err
}

func users(n int) string {
	if n == 1 {
		return "1 user"
	}
	return count(n) + " users"
}

// count writes 12345 as 12,345.
func count[T int | uint64](n T) string {
	digits := strconv.FormatUint(uint64(n), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// size writes bytes in units of 1000.
func size(n uint64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f kB", float64(n)/1e3)
}

// short writes up to three digits, and all before the point.
func short(v float64) string {
	if v >= 100 {
		return count(uint64(v + 0.5))
	}
	text := strconv.FormatFloat(v, 'g', 3, 64)
	if rounded, err := strconv.ParseFloat(text, 64); err == nil { // without an exponent
		text = strconv.FormatFloat(rounded, 'f', -1, 64)
	}
	return text
}

func price(v float64) string {
	if v == 0 {
		return ""
	}
	return short(v)
}
