"use strict";
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const darkScreen = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = { "--line": "#dfe3e8", "--soft": "#5b6470", "--raised": "#f6f7f8", "--ink": "#1b1f24", "--ground": "#ffffff" };
  const css = (name) =>
    printing ? paper[name] : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const hidden = new Set();
  const drawn = new Map(); // element -> how to make its traces and layout
  let printing = false;

  const dark = () => darkScreen.matches && !printing;
  const colour = (i) => data.choices[i][dark() ? "dark" : "light"];
  const faded = (i, alpha) => {
    const n = parseInt(colour(i).slice(1), 16);
    return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${alpha})`;
  };
  // Plotly reads a little HTML in names; a name is only ever text.
  const text = (s) => s.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const label = (i) => text(data.choices[i].label);
  const narrow = (element) => element.clientWidth < 520;

  function axis(title, more) {
    const base = {
      title: { text: title, standoff: 8 }, gridcolor: css("--line"), linecolor: css("--line"),
      zeroline: false, automargin: true, nticks: 7,
    };
    return Object.assign(base, more);
  }

  function layout(more) {
    const base = {
      autosize: true, showlegend: false, hovermode: "closest", dragmode: "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: css("--soft") },
      margin: { l: 52, r: 14, t: 8, b: 44 },
      hoverlabel: {
        bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--ink") },
        align: "left", namelength: -1,
      },
    };
    return Object.assign(base, more);
  }

  function curve(one, axisTitle, points, alpha) {
    const i = one.index, look = data.choices[i], traces = [];
    if (one.low) {
      traces.push({
        x: one.x.concat([...one.x].reverse()), y: one.high.concat([...one.low].reverse()),
        fill: "toself", fillcolor: faded(i, alpha), line: { width: 0 }, mode: "lines",
        hoverinfo: "skip", visible: !hidden.has(i),
      });
    }
    const sd = one.low ? one.mean.map((m, k) => ` ± ${(m - one.low[k]).toFixed(4)}`) : [];
    traces.push({
      x: one.x, y: one.mean, name: label(i), text: sd, visible: !hidden.has(i),
      mode: points ? "lines+markers" : "lines",
      line: { color: colour(i), width: 1.8, dash: look.dash },
      marker: { color: colour(i), symbol: look.symbol, size: 6 },
      hovertemplate: `<b>${label(i)}</b><br>loss %{y:.4f}%{text}<br>${axisTitle} %{x:,.0f}<extra></extra>`,
    });
    return traces;
  }

  function curves(kind, name) {
    const series = data.curves[kind][name], title = data.axes[name];
    const range = data.focus[kind][name];
    const alpha = series.length < 7 ? 0.14 : 0.04; // many bands must let the lines through
    return () => ({
      traces: series.flatMap((one) => curve(one, title, kind !== "train", alpha)),
      layout: layout({
        height: 340, xaxis: axis(title, { separatethousands: true }),
        yaxis: axis(kind === "apart" ? "loss less its mean" : "loss", range ? { range, autorange: false } : {}),
      }),
    });
  }

  function byChoice(points, make, xaxis) {
    return (element) => {
      const names = points.map((p) => label(p.index));
      // Where names beside the marks would leave no room for the marks, they stand above them.
      const above = narrow(element) && !printing, row = above ? 40 : 25;
      const annotations = !above ? [] : names.map((name, k) => ({
        text: name, x: 0, xref: "paper", xanchor: "left", y: k - 0.46, yanchor: "middle",
        showarrow: false, font: { size: 12 }, bgcolor: css("--ground"), borderpad: 1,
      }));
      return {
        traces: points.flatMap((p, place) => make(p, place)),
        layout: layout({
          height: 50 + row * points.length, annotations,
          margin: { l: 10, r: 16, t: 4, b: 30 }, xaxis: axis("", { title: undefined, ...xaxis }),
          yaxis: axis("", {
            tickvals: points.map((_, k) => k), ticktext: names, range: [points.length - 0.4, -0.6 - (above ? 0.2 : 0)], showticklabels: !above,
            showgrid: true, fixedrange: true, ticklabelstandoff: 8, title: undefined, nticks: undefined,
          }),
        }),
      };
    };
  }

  const mark = (p, size, opacity) => ({
    color: colour(p.index), symbol: data.choices[p.index].symbol, size, opacity,
  });

  function speedTraces(p, place) {
    return [{
      x: p.values, y: p.values.map(() => place), mode: "markers", marker: mark(p, 8, 0.6),
      text: p.seeds.map(String), visible: true,
      hovertemplate: `<b>${label(p.index)}</b><br>%{x:,.0f} real tokens/s, seed %{text}<extra></extra>`,
    }, {
      x: [p.mean, p.mean], y: [place - 0.25, place + 0.25], mode: "lines",
      line: { color: colour(p.index), width: 3 },
      hovertemplate: `<b>${label(p.index)}</b><br>mean %{x:,.0f} real tokens/s<extra></extra>`,
    }];
  }

  function dotTraces(digits, unit) {
    return (p, place) => {
      const traces = [];
      if (p.low !== undefined && p.low !== null) {
        traces.push({
          x: [p.low, p.high], y: [place, place], mode: "lines", hoverinfo: "skip",
          line: { color: faded(p.index, 0.55), width: 3 },
        });
      }
      traces.push({
        x: [p.mean], y: [place], mode: "markers", marker: mark(p, 10, 1),
        hovertemplate: `<b>${label(p.index)}</b><br>%{x:.${digits}f} ${unit}<extra></extra>`,
      });
      return traces;
    };
  }

  function lengths() {
    const colours = [0, 1, 2].map((k) => ["#0072b2", "#d55e00", "#009e73"][k]);
    return {
      traces: data.lengths.map((one, k) => ({
        type: "bar", offset: 0, x: one.bin_edges.slice(0, -1), y: one.shares,
        width: one.counts.map((_, j) => one.bin_edges[j + 1] - one.bin_edges[j]),
        customdata: one.counts.map((n, j) => [one.bin_edges[j], one.bin_edges[j + 1], n]),
        marker: { color: colours[k % 3], opacity: 0.7, line: { width: 0 } },
        hovertemplate: "%{customdata[0]:,.0f} to %{customdata[1]:,.0f} tokens<br>%{y:.1%} of samples (%{customdata[2]:,})<extra></extra>",
      })),
      layout: layout({
        height: 260, barmode: "overlay", bargap: 0,
        xaxis: axis("tokens of a sample", { separatethousands: true }),
        yaxis: axis("share of samples", { tickformat: ".0%", nticks: 5 }),
      }),
    };
  }

  function show(id, make) {
    const element = document.getElementById(id);
    if (element) drawn.set(element, make);
  }

  function draw() {
    for (const [element, make] of drawn) {
      const figure = make(element);
      if (printing) figure.layout.width = element.closest(".wide, .rows, section > figure") ? 660 : 320;
      Plotly.react(element, figure.traces, figure.layout, { responsive: true, displayModeBar: false });
    }
  }

  show("speed-plot", byChoice(data.speed, speedTraces, { separatethousands: true }));
  for (const kind of ["val", "train"]) {
    for (const name of Object.keys(data.axes)) show(`${kind}-${name}`, curves(kind, name));
  }
  show("apart-real_tokens", curves("apart", "real_tokens"));
  show("fill-plot", byChoice(data.fill, dotTraces(4, "real tokens per slot"), { nticks: 5 }));
  show("segments-plot", byChoice(data.segments, dotTraces(2, "samples on average"), {
    nticks: 6, range: [0, 1.06 * Math.max(1, ...data.segments.map((s) => Math.max(s.mean, s.high ?? 0)))],
  }));
  show("lengths-plot", lengths);
  draw();

  const buttons = [...document.querySelectorAll(".legend button[data-choice]")];
  const all = buttons.map((b) => Number(b.dataset.choice));
  function refresh() {
    for (const b of buttons) b.setAttribute("aria-pressed", String(!hidden.has(Number(b.dataset.choice))));
    for (const [element, make] of drawn) {
      if (!element.closest("#curves")) continue;
      const figure = make(element);
      Plotly.restyle(element, { visible: figure.traces.map((t) => t.visible) });
    }
  }
  for (const button of buttons) {
    const i = Number(button.dataset.choice);
    button.addEventListener("click", () => { hidden.has(i) ? hidden.delete(i) : hidden.add(i); refresh(); });
    button.addEventListener("dblclick", () => {
      hidden.clear();
      all.filter((k) => k !== i).forEach((k) => hidden.add(k));
      refresh();
    });
  }
  document.querySelector(".legend .all")?.addEventListener("click", () => { hidden.clear(); refresh(); });

  darkScreen.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
})();
