// Small plots, drawn by hand as SVG.

import { short, svg } from "./dom.js";

const W = 320, H = 140, LEFT = 40, RIGHT = 12, TOP = 10, BOTTOM = 30;

// Round numbers from 0 to `most`, three to five of them.
function ticks(most) {
  const raw = most / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * power).find((one) => one >= raw);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, index) => index * step);
}

const plain = (value) => String(Number(value.toPrecision(4)));

// A frame with axes from 0, and where a point lies in it.
function frame(container, label, xMost, yMost, xLabel) {
  const x = (value) => LEFT + ((W - LEFT - RIGHT) * value) / xMost;
  const y = (value) => H - BOTTOM - ((H - TOP - BOTTOM) * value) / yMost;
  const picture = svg("svg", { cls: "plot", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  for (const value of ticks(yMost)) {
    picture.append(svg("line", { cls: "grid", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", text: plain(value) }));
  }
  for (const value of ticks(xMost)) {
    picture.append(svg("text", { x: x(value), y: H - BOTTOM + 14, "text-anchor": "middle", text: plain(value) }));
  }
  picture.append(svg("text", { cls: "axis", x: W - RIGHT, y: H - 3, "text-anchor": "end", text: xLabel }));
  container.replaceChildren(picture);
  return { picture, x, y };
}

// series: name, cls, points [[x, y]]
export function linePlot(container, series, xLabel, label) {
  const all = series.flatMap((one) => one.points);
  if (!all.length) return container.replaceChildren();
  const xMost = Math.max(0.5, ...all.map((point) => point[0])), yMost = 1.15 * Math.max(1e-9, ...all.map((point) => point[1]));
  const { picture, x, y } = frame(container, label, xMost, yMost, xLabel);
  for (const { name, cls, points, dots } of series) {
    if (!points.length) continue;
    const path = points.map(([px, py]) => `${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join("L");
    picture.append(svg("path", { cls: `line ${cls}`, d: `M${path}` }));
    if (dots) for (const [px, py] of points) picture.append(svg("circle", { cls, cx: x(px), cy: y(py), r: 2.5 }, svg("title", { text: dots(px, py) })));
    const [endX, endY] = points.at(-1);
    const inside = x(endX) > W - 90;
    if (name) picture.append(svg("text", { cls: `name ${cls}`, x: x(endX) + (inside ? 0 : 4), y: Math.max(TOP + 4, y(endY) - 6), "text-anchor": inside ? "end" : "start", text: name }));
  }
}

// The last steps as bars: kept from the draft, the model's own on top of it, rejected as an outline above both.
export function stepPlot(container, steps) {
  if (!steps.length) return container.replaceChildren();
  const shown = steps.slice(-48), first = steps.length - shown.length;
  const yMost = Math.max(4, ...shown.map((step) => step.drafted.length + 1));
  const mean = steps.reduce((sum, step) => sum + step.tokens.length, 0) / steps.length;
  const { picture, x, y } = frame(container, `${short(mean)} tokens per step over ${steps.length} steps`, 48, yMost, first ? `last 48 of ${steps.length} steps` : "steps");
  shown.forEach((step, index) => {
    const kept = step.accepted_path.length, got = step.tokens.length, all = step.drafted.length + got - kept;
    const bar = (cls, from, to) => to > from && picture.append(svg("rect", {
      cls, x: x(index) + 0.5, width: x(1) - x(0) - 1, y: y(to), height: y(from) - y(to) }));
    bar("bar accepted", 0, kept);
    bar("bar own", kept, got);
    bar("bar rejected", got, all);
  });
  picture.append(svg("line", { cls: "mean", x1: LEFT, x2: W - RIGHT, y1: y(mean), y2: y(mean) }),
    svg("text", { cls: "name", x: W - RIGHT, y: y(mean) - 4, "text-anchor": "end", text: `mean ${short(mean)}` }));
}
