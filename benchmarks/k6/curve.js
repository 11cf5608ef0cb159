// Latency against the rate of requests, as a picture (SVG) without a library.
const width = 720;
const height = 420;
const left = 70;
const right = 20;
const top = 40;
const bottom = 60;
const colors = ['#1f6feb', '#d1242f', '#1a7f37', '#9a6700'];

// nice is the least of 1, 2, 5 x 10^n that is not below v.
function nice(v) {
  const power = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 5, 10].map((f) => f * power).find((n) => n >= v) || 10 * power;
}

// curve draws series [{name, points: [[rate, ms]]}], and a line at the bound.
export function curve(title, series, bound) {
  const all = series.flatMap((s) => s.points);
  const xMost = nice(Math.max(...all.map((p) => p[0])));
  const yMost = nice(Math.max(bound, ...all.map((p) => p[1])));
  const x = (v) => left + (v / xMost) * (width - left - right);
  const y = (v) => height - bottom - (v / yMost) * (height - top - bottom);
  const out = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="13">`,
    `<rect width="${width}" height="${height}" fill="white"/>`,
    `<text x="${width / 2}" y="22" text-anchor="middle" font-size="15">${title}</text>`,
  ];
  for (let i = 0; i <= 5; i++) {
    const [xv, yv] = [(xMost * i) / 5, (yMost * i) / 5];
    out.push(
      `<line x1="${left}" x2="${width - right}" y1="${y(yv)}" y2="${y(yv)}" stroke="#d0d7de"/>`,
      `<text x="${left - 8}" y="${y(yv) + 4}" text-anchor="end">${+yv.toPrecision(3)}</text>`,
      `<text x="${x(xv)}" y="${height - bottom + 20}" text-anchor="middle">${+xv.toPrecision(3)}</text>`,
    );
  }
  out.push(
    `<text x="${width / 2}" y="${height - 12}" text-anchor="middle">requests per second</text>`,
    `<text transform="translate(16 ${height / 2}) rotate(-90)" text-anchor="middle">ms</text>`,
    `<line x1="${left}" x2="${width - right}" y1="${y(bound)}" y2="${y(bound)}" stroke="#6e7781" stroke-dasharray="6 4"/>`,
  );
  for (const [i, s] of series.entries()) {
    const color = colors[i % colors.length];
    out.push(`<polyline fill="none" stroke="${color}" stroke-width="2" points="${s.points.map((p) => `${x(p[0])},${y(p[1])}`).join(' ')}"/>`);
    for (const p of s.points) out.push(`<circle cx="${x(p[0])}" cy="${y(p[1])}" r="3.5" fill="${color}"/>`);
    out.push(`<text x="${left + 14}" y="${top + 16 + 18 * i}" fill="${color}">${s.name}</text>`);
  }
  out.push('</svg>\n');
  return out.join('\n');
}
