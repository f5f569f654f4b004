"use strict";
// The page's whole behaviour. State in one object; every change draws everything again, which takes milliseconds.
(() => {
  const found = JSON.parse(document.getElementById("found").textContent);
  const byId = (id) => document.getElementById(id);
  const state = { section: 0, view: 0, client: -1, hidden: new Set(), picked: null, paper: true, shown: "shifted", sort: null };
  const section = () => found.sections[state.section];
  const view = () => section().views[state.view];
  const visible = () => view().methods.filter((method) => !state.hidden.has(method.name));
  // A client may have no sample of a test context: what is not known is null, and left out of means.
  const known = (values) => values.filter((value) => value != null);
  const mean = (values) => (known(values).length ? known(values).reduce((sum, value) => sum + value, 0) / known(values).length : null);
  const digits = () => (section().unit === "%" ? 2 : 4);
  const format = (value) => (value == null ? "" : value.toFixed(digits()));
  const withUnit = (value) => (value == null ? "no sample" : format(value)) + (section().unit ? " " + section().unit : "");
  const worst = (values) => (known(values).length ? (section().larger_is_better ? Math.min : Math.max)(...known(values)) : null);
  const better = (a, b) => a != null && (b == null || (section().larger_is_better ? a > b : a < b));

  // ------------------------------------------------------------------------------------------------ making elements
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value != null && value !== false) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }
  function drawn(name, attributes = {}, text = null) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text != null) made.textContent = text;
    return made;
  }

  // --------------------------------------------------------------------------------------------------------- colours
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  function luminance(channels) {
    const linear = channels.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }
  function fitted(hex) {
    // The method's colour, moved towards the ink until it stands out from the paper by 3 : 1.
    const dark = isDark();
    const paper = luminance(rgb(dark ? "#14181d" : "#ffffff"));
    let channels = rgb(hex);
    for (let step = 0; step < 20; step++) {
      const own = luminance(channels);
      if ((Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05) >= 3) break;
      channels = channels.map((c) => c + ((dark ? 255 : 0) - c) * 0.12);
    }
    return `rgb(${channels.map(Math.round).join(",")})`;
  }
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  function isDark() {
    const theme = document.documentElement.dataset.theme;
    return theme === "dark" || (theme === "auto" && media.matches);
  }

  // ---------------------------------------------------------------------------------------------------------- shapes
  const PATHS = {
    circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
    square: "M-3.6,-3.6h7.2v7.2h-7.2z",
    "triangle-up": "M0,-4.8L4.5,3.4H-4.5z",
    "triangle-down": "M0,4.8L4.5,-3.4H-4.5z",
    "triangle-right": "M4.8,0L-3.4,4.5V-4.5z",
    "triangle-left": "M-4.8,0L3.4,4.5V-4.5z",
    diamond: "M0,-5L4.4,0L0,5L-4.4,0z",
    cross: "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    stroke: "M-4,-1h8v2h-8z",
  };
  const pathOf = (shape) => PATHS[shape] || PATHS.circle;

  // ----------------------------------------------------------------------------------------------------- line charts
  const charts = {};
  function lineChart(id, spec) {
    const box = byId(id);
    const width = Math.max(280, box.clientWidth), height = width < 480 ? 300 : 380;
    const edge = { left: 48, right: 14, top: 12, bottom: 46 };
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const numbers = spec.series.flatMap((s) => s.points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]));
    numbers.push(...spec.levels.map((level) => level.y));
    const clean = numbers.filter(Number.isFinite);
    let low = Math.min(...clean), high = Math.max(...clean);
    if (!clean.length) { low = 0; high = 1; }
    if (section().unit === "%") {
      low = Math.max(0, 10 * Math.floor((low - 1) / 10));
      high = Math.min(100, 10 * Math.ceil((high + 1) / 10));
    } else {
      const room = 0.06 * (high - low || 1);
      low -= room; high += room;
    }
    const xs = spec.xs;
    const x = (value) => edge.left + 10 + ((value - xs.low) / (xs.high - xs.low || 1)) * (width - edge.left - edge.right - 20);
    const y = (value) => height - edge.bottom - ((value - low) / (high - low || 1)) * (height - edge.top - edge.bottom);
    if (spec.trained && xs.numeric) {
      const from = Math.max(x(spec.trained[0]), edge.left), to = Math.min(x(spec.trained[1]), width - edge.right);
      if (to > from) {
        svg.append(drawn("rect", { class: "trained", x: from, y: edge.top, width: to - from, height: height - edge.top - edge.bottom }));
        svg.append(drawn("text", { x: from + 4, y: height - edge.bottom - 6 }, "training"));
      }
    }
    for (const tick of ticks(low, high)) {
      svg.append(drawn("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(tick), y2: y(tick) }));
      svg.append(drawn("text", { x: edge.left - 8, y: y(tick) + 4, "text-anchor": "end" }, String(+tick.toPrecision(4))));
    }
    let last = -100;
    for (const tick of xs.ticks) {
      const at = x(tick.value), space = Math.max(30, 7.5 * tick.label.length);
      if (at - last < space) continue;
      last = at;
      svg.append(drawn("text", { x: at, y: height - edge.bottom + 18, "text-anchor": "middle" }, tick.label));
    }
    svg.append(drawn("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: height - edge.bottom, y2: height - edge.bottom }));
    svg.append(drawn("text", { x: (edge.left + width) / 2, y: height - 8, "text-anchor": "middle" }, spec.xTitle));
    for (const level of spec.levels) {
      svg.append(drawn("line", { x1: edge.left, x2: width - edge.right, y1: y(level.y), y2: y(level.y), stroke: fitted(level.colour), "stroke-width": 2, "stroke-dasharray": "2 4" }));
      svg.append(drawn("text", { x: width - edge.right, y: y(level.y) - 5, "text-anchor": "end" }, level.label));
    }
    const places = [];
    spec.series.forEach((series, row) => {
      const dim = state.picked && state.picked !== series.method ? " dim" : "";
      const group = drawn("g", { class: "series" + dim, "data-method": series.method, "data-kind": series.kind });
      const colour = fitted(series.colour);
      const sound = series.points.filter((point) => Number.isFinite(point.y));
      const banded = sound.filter((point) => point.high > point.low);
      if (banded.length > 1) {
        const top = banded.map((p) => `${x(p.x)},${y(p.high)}`), back = banded.map((p) => `${x(p.x)},${y(p.low)}`).reverse();
        group.append(drawn("polygon", { points: [...top, ...back].join(" "), fill: colour, opacity: 0.14 }));
      }
      group.append(drawn("polyline", { class: "line", points: sound.map((p) => `${x(p.x)},${y(p.y)}`).join(" "), stroke: colour, ...(series.kind === "paper" ? { "stroke-dasharray": "6 4", "stroke-width": 1.6 } : xs.numeric ? {} : { opacity: 0.35 }) }));
      const marks = series.kind === "measured" && sound.length <= 30;
      for (const point of sound) {
        if (marks) group.append(drawn("path", { d: pathOf(series.shape), transform: `translate(${x(point.x)},${y(point.y)})`, fill: colour }));
        places.push({ px: x(point.x), py: y(point.y), row, point, series });
      }
      svg.append(group);
    });
    const ring = drawn("circle", { r: 8, fill: "none", stroke: "currentColor", "stroke-width": 2, visibility: "hidden" });
    svg.append(ring);
    box.replaceChildren(svg);
    box.setAttribute("aria-label", spec.label);
    charts[id] = { places, ring, svg, box, width, series: spec.series, at: null };
  }
  function ticks(low, high) {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || power;
    const list = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9; tick += step) list.push(tick);
    return list;
  }
  function show(id, place, byPointer) {
    const chart = charts[id];
    chart.at = place;
    if (!place) {
      chart.ring.setAttribute("visibility", "hidden");
      byId("tip").hidden = true;
      return;
    }
    chart.ring.setAttribute("cx", place.px);
    chart.ring.setAttribute("cy", place.py);
    chart.ring.setAttribute("visibility", "visible");
    const range = place.point.low != null && place.point.high > place.point.low ? ` (${format(place.point.low)} to ${format(place.point.high)})` : "";
    const words = `${place.series.name}, ${place.point.label}: ${withUnit(place.point.y)}${range}`;
    if (byId(id + "-readout").textContent !== words) byId(id + "-readout").textContent = words;
    const tip = byId("tip");
    if (byPointer) {
      tip.textContent = words;
      tip.hidden = false;
      const frame = chart.svg.getBoundingClientRect(), scale = frame.width / chart.width;
      const left = frame.left + place.px * scale, top = frame.top + place.py * scale + window.scrollY;
      tip.style.left = `${Math.min(Math.max(8, left + 14), document.documentElement.clientWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.max(0, top - tip.offsetHeight - 12)}px`;
    } else tip.hidden = true;
  }
  function nearest(chart, event) {
    const frame = chart.svg.getBoundingClientRect(), scale = frame.width / chart.width;
    const px = (event.clientX - frame.left) / scale, py = (event.clientY - frame.top) / scale;
    let best = null, distance = 40 ** 2;
    for (const place of chart.places) {
      const d = (place.px - px) ** 2 + (place.py - py) ** 2;
      if (d < distance) { best = place; distance = d; }
    }
    return best;
  }
  function walk(chart, key) {
    if (!chart.places.length) return null;
    if (!chart.at) return chart.places[0];
    const { row, px } = chart.at;
    const rowOf = (wanted) => chart.places.filter((place) => place.row === wanted);
    if (key === "ArrowLeft" || key === "ArrowRight" || key === "Home" || key === "End") {
      const own = rowOf(row), here = own.indexOf(chart.at);
      const target = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: own.length - 1 }[key];
      return own[Math.min(own.length - 1, Math.max(0, target))];
    }
    const rows = chart.series.length;
    for (let n = 1; n <= rows; n++) {
      const candidates = rowOf((row + (key === "ArrowDown" ? n : -n) + n * rows) % rows);
      if (candidates.length) return candidates.reduce((a, b) => (Math.abs(a.px - px) <= Math.abs(b.px - px) ? a : b));
    }
    return chart.at;
  }
  function pick(method) {
    state.picked = state.picked === method ? null : method;
    draw();
  }
  for (const id of ["spectrum", "learning"]) {
    const box = byId(id);
    box.addEventListener("pointermove", (event) => show(id, nearest(charts[id], event), true));
    box.addEventListener("pointerleave", () => show(id, null));
    box.addEventListener("click", (event) => {
      const place = nearest(charts[id], event);
      if (place) pick(place.series.method);
      else if (state.picked) pick(state.picked);
    });
    box.addEventListener("keydown", (event) => {
      const chart = charts[id];
      if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
        event.preventDefault();
        show(id, walk(chart, event.key), false);
      } else if (event.key === "Enter" && chart.at) {
        const { row, point } = chart.at;
        pick(chart.at.series.method);
        show(id, charts[id].places.find((place) => place.row === row && place.point.label === point.label) || null, false);
      } else if (event.key === "Escape") {
        if (state.picked) pick(state.picked);
        show(id, null);
      }
    });
  }

  // ------------------------------------------------------------------------------------------------- what is plotted
  const valueOf = (method, name) => (state.client < 0 ? method.cases[name][0] : method.clients[state.client][name]);
  const constantOf = (name) => (state.client < 0 ? section().constant.cases[name] : section().constant.clients[state.client][name]);
  const averageOf = (method) => mean(section().spectrum.map((name) => valueOf(method, name)));
  const word = () => section().words.clients;
  const who = () => (state.client < 0 ? `mean over ${section().clients.length} ${word()}` : section().clients[state.client]);

  // Own data: a bar per method at each site, since the order of contexts means nothing. From zero, so that lengths compare.
  function drawBars() {
    const here = section(), box = byId("spectrum"), methods = visible();
    const width = Math.max(280, box.clientWidth), left = Math.min(120, width * 0.28), named = width > 600 && methods.length <= 4, right = named ? 150 : 54, thick = 11;
    const shown = state.client < 0 ? [-1, ...here.clients.keys()].slice(0, 31) : [state.client];
    const spanOf = (method, name, client) => {
      const found = method.spans[name];
      return (found && (client < 0 ? found.mean : found.clients[here.clients[client]])) || [null, null];
    };
    const at = (values, name, client) => (client < 0 ? mean(values.map((one) => one[name])) : values[client][name]);
    const numbers = here.cases.flatMap((c) => methods.flatMap((m) => [m.cases[c.name][0], ...m.clients.map((own) => own[c.name])]));
    const ends = methods.flatMap((m) => Object.values(m.spans).flatMap((span) => [span.mean, ...Object.values(span.clients)].map((both) => both[1])));
    const high = here.unit === "%" ? 100 : Math.max(...known(numbers), ...known(ends), ...known(here.cases.flatMap((c) => [here.constant.cases, ...here.constant.clients].map((own) => own[c.name]))), 1e-9) * 1.05;
    const x = (value) => left + (Math.min(value, high) / high) * (width - left - right);
    const svg = drawn("svg", { "aria-hidden": "true" }), places = [], marks = [];
    const dim = (method) => (state.picked && state.picked !== method.name ? " dim" : "");
    const groups = methods.map((method) => drawn("g", { class: "series" + dim(method), "data-method": method.name, "data-kind": "measured" }));
    const values = []; // over the marks of the constant
    let y = 4;
    for (const { name } of here.cases) {
      svg.append(drawn("text", { class: "panel", x: 0, y: y + 12 }, name === "same contexts" ? "rows held out at random" : `${here.words.context} ${name}`));
      y += 22;
      for (const client of shown) {
        const label = client < 0 ? "all (mean)" : here.clients[client];
        const begin = y;
        methods.forEach((method, row) => {
          const value = client < 0 ? method.cases[name][0] : method.clients[client][name];
          if (value != null) {
            const [low, top] = spanOf(method, name, client);
            groups[row].append(drawn("rect", { class: "bar", x: left, y, width: Math.max(0.5, x(value) - left), height: thick - 2, fill: fitted(method.colour) }));
            if (low != null) groups[row].append(drawn("line", { class: "whisker", x1: x(low), x2: x(top), y1: y + thick / 2 - 1, y2: y + thick / 2 - 1 }));
            if (methods.length <= 4) values.push(drawn("text", { class: "value" + dim(method), x: Math.max(x(value), top == null ? 0 : x(top)) + 5, y: y + thick - 2 }, (here.unit === "%" ? value.toFixed(1) : String(+value.toPrecision(3))) + (named && client === shown[0] ? ` ${method.name}` : "")));
            places.push({ px: x(value), py: y + thick / 2 - 1, row, series: { method: method.name, name: method.name }, point: { y: value, low, high: top, label: `${name}, ${label}` } });
          }
          y += thick;
        });
        const constant = at(client < 0 ? [here.constant.cases] : here.constant.clients, name, client);
        if (constant != null) marks.push(drawn("line", { class: "constant", x1: x(constant), x2: x(constant), y1: begin - 2, y2: y }));
        svg.append(drawn("text", { x: left - 6, y: (begin + y) / 2 + 3, "text-anchor": "end" }, label.length > 15 ? label.slice(0, 14) + "…" : label));
        y += 9;
      }
      y += 8;
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${y}`);
    svg.append(...groups, ...marks, ...values);
    const ring = drawn("circle", { r: 7, fill: "none", stroke: "currentColor", "stroke-width": 2, visibility: "hidden" });
    svg.append(ring);
    box.replaceChildren(svg);
    box.setAttribute("aria-label", `${here.measure} by ${here.words.context} and ${here.words.client}, ${methods.length} methods. Arrow keys read out the bars.`);
    charts.spectrum = { places, ring, svg, box, width, series: methods, at: null };
    byId("h-spectrum").textContent = `${here.measure} by ${here.words.client}`;
    const lines = methods.some((method) => Object.keys(method.spans).length) ? " The thin line over a bar is its 95 % interval over rows." : "";
    byId("spectrum-words").textContent = `${here.measure}${here.unit ? " in percent" : ""}; the dashed mark is a constant answer.${lines}${here.clients.length > 30 && state.client < 0 ? " The first 30 are drawn; the menu above has all." : ""}`;
  }
  function drawSpectrum() {
    if (section().own) return drawBars();
    const here = section(), known = Object.fromEntries(here.cases.map((c) => [c.name, c.p]));
    const numeric = here.cases.length > 1 && here.spectrum.every((name) => known[name] != null);
    const place = (index) => (numeric ? here.cases[index].p : index);
    const placed = here.cases.map((_, index) => index).filter((index) => place(index) != null); // the rest is in the table
    const order = placed.sort((a, b) => place(a) - place(b));
    const deviates = state.client < 0 && here.seeds > 1;
    const series = [];
    const count = visible().length;
    visible().forEach((method, rank) => {
      const aside = numeric ? 0 : (0.3 * (rank - (count - 1) / 2)) / count; // so that points of one context do not hide each other
      series.push({
        method: method.name, name: method.name, kind: "measured", colour: method.colour, shape: method.shape,
        points: order.map((index) => {
          const name = here.cases[index].name, value = valueOf(method, name), off = deviates ? method.cases[name][1] : 0;
          return { x: place(index) + aside, y: value ?? NaN, low: value == null ? NaN : value - off, high: value == null ? NaN : value + off, label: `${numeric ? "p = " : ""}${name}` };
        }),
      });
      if (method.paper && state.paper && state.client < 0) {
        const points = order.filter((index) => here.cases[index].name in method.paper).map((index) => ({
          x: place(index) + aside, y: method.paper[here.cases[index].name], label: `${numeric ? "p = " : ""}${here.cases[index].name}` }));
        series.push({ method: method.name, name: `${method.name} in the paper`, kind: "paper", colour: method.colour, shape: method.shape, points });
      }
    });
    const level = mean(here.spectrum.map(constantOf));
    const levels = level == null ? [] : [{ y: level, colour: here.constant.colour, label: "a constant answer" }];
    lineChart("spectrum", {
      series,
      xs: { low: Math.min(...order.map(place)) - (numeric ? 0 : 0.5), high: Math.max(...order.map(place)) + (numeric ? 0 : 0.5), numeric,
        ticks: order.map((index) => ({ value: place(index), label: here.cases[index].name })) },
      levels,
      trained: here.trained, xTitle: window.innerWidth < 560 && here.across.length > 40 ? "p at test" : here.across,
      label: `${here.measure} by test context, ${visible().length} methods, ${who()}. Arrow keys read out the points.`,
    });
    byId("h-spectrum").textContent = `${here.measure} under shift`;
    const range = here.seeds > 1 ? ` Shade: one standard deviation over ${here.seeds} seeds.` : "";
    byId("spectrum-words").textContent = `${here.measure}${here.unit ? " in percent" : ""}, ${who()}.${numeric ? ` ${here.across}.` : ""}${range}`;
  }
  function drawLearning() {
    const here = section();
    const names = state.shown === "shifted" ? here.spectrum : [state.shown];
    const risk = state.shown === "risk";
    const series = visible().map((method) => {
      const curves = method.curves;
      const source = state.client >= 0 && curves.clients.length ? curves.clients[state.client] : curves.mean;
      const points = curves.rounds.map((round, at) => ({
        x: round, y: (risk ? curves.risk[at] : mean(names.map((name) => source[name][at]))) ?? NaN, label: `round ${round}` }));
      return { method: method.name, name: method.name, kind: "measured", colour: method.colour, shape: method.shape, points };
    });
    const rounds = series.flatMap((s) => s.points.map((p) => p.x));
    const high = Math.max(1, ...rounds);
    lineChart("learning", {
      series, trained: null, xTitle: "Round",
      xs: { low: 0, high, numeric: true, ticks: ticks(0, high).map((value) => ({ value, label: String(value) })) },
      levels: risk || mean(names.map(constantOf)) == null ? [] : [{ y: mean(names.map(constantOf)), colour: here.constant.colour, label: "a constant answer" }],
      label: `During training, ${who()}. Arrow keys read out the points.`,
    });
  }

  // ---------------------------------------------------------------------------------------------------------- tables
  const COLUMN_AVERAGE = "Average", COLUMN_WORST = "Worst context", COLUMN_PLAIN = "Plain accuracy";
  function tableRows() {
    const here = section();
    // Where one class is rare the page shows class-balanced accuracy, of which a constant answer has 50.
    const plain = state.client < 0 && here.constant_plain != null;
    const several = !here.own || here.spectrum.length > 1; // of one context, the average is that context
    const columns = [...(several ? [COLUMN_AVERAGE, COLUMN_WORST] : []), ...(plain ? [COLUMN_PLAIN] : []), ...here.cases.map((c) => c.name)];
    const rows = [];
    const reference = Object.fromEntries(here.cases.map((c) => [c.name, constantOf(c.name)]));
    rows.push({ name: "Constant answer", kind: "reference", values: reference });
    for (const method of visible()) {
      rows.push({ name: method.name, kind: "measured", method, values: Object.fromEntries(here.cases.map((c) => [c.name, valueOf(method, c.name)])) });
      if (method.paper && state.paper && state.client < 0) rows.push({ name: `${method.name}, paper`, kind: "published", method, values: { ...method.paper } });
    }
    for (const row of rows) {
      const shifted = here.spectrum.map((name) => row.values[name]);
      row.values[COLUMN_AVERAGE] = mean(shifted);
      row.values[COLUMN_WORST] = worst(shifted);
      if (plain) row.values[COLUMN_PLAIN] = row.kind === "reference" ? mean(Object.values(here.constant_plain)) : row.method.plain;
    }
    if (state.sort) {
      const { column, down } = state.sort;
      rows.sort((a, b) => (column === "Method" ? a.name.localeCompare(b.name) : (a.values[column] ?? -1e9) - (b.values[column] ?? -1e9)) * (down ? -1 : 1));
    }
    return { columns, rows };
  }
  function drawNumbers() {
    const { columns, rows } = tableRows();
    const head = element("tr");
    for (const column of ["Method", ...columns]) {
      const button = element("button", { type: "button" }, column);
      const sorted = state.sort && state.sort.column === column;
      button.addEventListener("click", () => {
        state.sort = { column, down: sorted ? !state.sort.down : column !== "Method" };
        drawNumbers();
        [...byId("numbers").querySelectorAll("thead button")].find((b) => b.textContent === column).focus();
      });
      head.append(element("th", { scope: "col", "aria-sort": sorted ? (state.sort.down ? "descending" : "ascending") : null }, button));
    }
    const measured = rows.filter((row) => row.kind === "measured" && !row.method.reference); // a reference is never the best
    const best = Object.fromEntries(columns.map((column) => [column, measured.map((row) => row.values[column]).reduce((a, b) => (better(b, a) ? b : a), null)]));
    const body = rows.map((row) => {
      const line = element("tr", { class: `${row.kind}${row.method && state.picked === row.method.name ? " picked" : ""}` });
      line.append(element("th", { scope: "row" }, row.name));
      for (const column of columns) {
        const value = row.values[column];
        const cell = element("td", { class: measured.includes(row) && value != null && value === best[column] && measured.length > 1 ? "best" : null }, format(value));
        const spread = row.kind === "measured" && state.client < 0 && row.method.seeds.length > 1 && row.method.cases[column];
        if (spread) cell.append(element("span", { class: "quiet" }, ` ± ${format(spread[1])}`));
        line.append(cell);
      }
      return line;
    });
    byId("numbers").replaceChildren(element("caption", { class: "quiet", style: "text-align:left" }, `${section().measure}${section().unit ? " in percent" : ""}, ${who()}${columns.includes(COLUMN_AVERAGE) ? `; average and worst over ${section().spectrum.join(", ")}` : ""}${measured.some((row) => row.method.seeds.length > 1) && state.client < 0 ? "; ± over seeds" : ""}. Click a column title to sort.`), element("thead", {}, head), element("tbody", {}, ...body));
  }
  function drawCompared() {
    const here = section();
    const methods = visible().filter((method) => method.paper);
    byId("paper-section").hidden = !methods.length;
    byId("paper-box").hidden = !view().methods.some((method) => method.paper);
    const head = element("tr", {}, ...["Method", "Ours", "The paper", "Difference", ""].map((text) => element("th", { scope: "col" }, text)));
    const own = (method) => mean(here.spectrum.map((name) => method.cases[name][0]));
    const theirs = (method) => mean(Object.values(method.paper));
    const most = Math.max(1, ...methods.map((method) => Math.abs(own(method) - theirs(method))));
    const constant = mean(here.spectrum.map((name) => here.constant.cases[name]));
    const rows = methods.map((method) => {
      const difference = own(method) - theirs(method);
      const bar = element("span", { class: "bar", style: `width:${(70 * Math.abs(difference)) / most}px;background:${fitted(method.colour)}` });
      return element("tr", {}, element("th", { scope: "row" }, method.name), element("td", {}, format(own(method))), element("td", {}, format(theirs(method))),
        element("td", { class: difference >= 0 ? "better" : "worse" }, `${difference >= 0 ? "+" : "−"}${format(Math.abs(difference))}`), element("td", { style: "text-align:left" }, bar));
    });
    rows.push(element("tr", { class: "reference" }, element("th", { scope: "row" }, "Constant answer"), element("td", {}, format(constant)), element("td"), element("td"), element("td")));
    byId("compared").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
  }
  function drawClients() {
    const here = section();
    const average = (values) => mean(here.spectrum.map((name) => values[name]));
    const many = here.clients.length > 30;
    const shownClients = here.clients.map((_, index) => index).slice(0, many ? 30 : undefined);
    const head = element("tr", {}, element("th", { scope: "col" }, "Method"));
    for (const index of shownClients) {
      const button = element("button", { type: "button", "aria-pressed": String(state.client === index) }, here.clients[index]);
      button.addEventListener("click", () => choose(state.client === index ? -1 : index, () => byId("clients").querySelectorAll("thead button")[index].focus()));
      head.append(element("th", { scope: "col" }, button));
    }
    head.append(element("th", { scope: "col" }, here.own ? `Worst ${here.words.client}` : "Worst client"));
    const line = (name, list, kind, picked) => element("tr", { class: `${kind}${picked ? " picked" : ""}` }, element("th", { scope: "row" }, name),
      ...shownClients.map((index) => element("td", {}, format(average(list[index])))), element("td", {}, format(worst(list.map(average)))));
    const rows = [line("Constant answer", here.constant.clients, "reference", false)];
    for (const method of visible()) {
      rows.push(line(method.name, method.clients, "measured", state.picked === method.name));
      if (method.shared) rows.push(line(`${method.name}, shared model`, method.shared, "published", false));
    }
    byId("clients").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
    const contexts = here.contexts.length && here.contexts.every((n) => n === 1) ? ` Every ${here.own ? here.words.client : "client"} has one training context.` : "";
    const named = `${here.own ? here.words.context + " " : ""}${here.spectrum.join(", ")}`;
    const tested = here.spectrum.join() === "same contexts" ? "Rows held out at random" : here.spectrum.length > 1 ? `Average over ${named}` : named;
    byId("clients-words").textContent = `${tested} at each ${here.own ? here.words.client : "client"}. Click a name to see the charts for it alone.${contexts}${many ? " The first 30 clients are listed; the menu above has all." : ""}`;
  }
  const span = (rounds) => [...new Set([Math.min(...rounds), Math.max(...rounds)])].join("–");
  function plain(value) {
    return Array.isArray(value) ? `[${value.map(plain).join(", ")}]` : typeof value === "number" && !Number.isInteger(value) ? String(+value.toPrecision(4)) : String(value);
  }
  function drawSettings() {
    const methods = view().methods;
    const keys = [...new Set(methods.flatMap((method) => Object.keys(method.settings)))];
    const rows = keys.map((key) => {
      const values = methods.map((method) => (key in method.settings ? plain(method.settings[key]) : ""));
      const differs = new Set(values.filter((value) => value !== "")).size > 1;
      return element("tr", {}, element("th", { scope: "row" }, key), ...values.map((value) => element("td", {}, differs ? element("strong", {}, value) : value)));
    });
    rows.unshift(element("tr", {}, element("th", { scope: "row" }, "round shown"), ...methods.map((method) => element("td", {}, span(method.rounds)))),
      element("tr", {}, element("th", { scope: "row" }, "seeds"), ...methods.map((method) => element("td", {}, method.seeds.join(", ")))),
      element("tr", {}, element("th", { scope: "row" }, "from"), ...methods.map((method) => element("td", {}, method.paper_name))));
    byId("settings").replaceChildren(element("thead", {}, element("tr", {}, ...["Setting", ...methods.map((m) => m.name)].map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
    pairs("data-settings", section().data);
    const environments = section().environments;
    pairs("environment", environments[0], environments.slice(1));
    byId("rule-words").textContent = view().words;
    byId("notes").replaceChildren(...section().notes.map((note) => element("li", {}, note)));
  }
  function pairs(id, first, others = []) {
    const rows = Object.keys(first).map((key) => element("tr", {}, element("th", { scope: "row" }, key),
      ...[first, ...others].map((one) => element("td", { class: "wide" }, plain(one[key])))));
    byId(id).replaceChildren(element("tbody", {}, ...rows));
  }

  // -------------------------------------------------------------------------------------------------------- sentence
  function drawSentence() {
    const here = section(), methods = view().methods.filter((method) => !method.reference);
    if (!methods.length) return;
    const ranked = [...methods].sort((a, b) => (better(averageOf(a), averageOf(b)) ? -1 : 1));
    const worstOf = (method) => worst(here.spectrum.map((name) => valueOf(method, name)));
    const steady = [...methods].sort((a, b) => (better(worstOf(a), worstOf(b)) ? -1 : 1))[0];
    const constant = mean(here.spectrum.map(constantOf));
    const beaten = methods.filter((method) => better(averageOf(method), constant)).length;
    const constantPart = `a constant answer gives ${withUnit(constant)}, and ${beaten} of ${methods.length} methods ${beaten === 1 ? "does" : "do"} better${state.client < 0 ? "" : ` at ${section().clients[state.client]}`}.`;
    const only = here.spectrum[0];
    const where = !here.own ? `On the shifted test context ${only}` : only === "same contexts" ? "On rows held out at random" : `In ${here.words.context} ${only}`;
    if (here.spectrum.length === 1) {
      byId("sentence").textContent = `${where}, ${ranked[0].name} is best${here.own ? "" : " on average"} (${withUnit(averageOf(ranked[0]))}); ${constantPart}`;
      return;
    }
    const same = steady === ranked[0] ? "also best in the worst one" : `${steady.name} is best in the worst one`;
    byId("sentence").textContent = `${here.own ? `Over ${here.words.context} ${here.spectrum.join(", ")},` : "Over the shifted test contexts"} ${ranked[0].name} is best on average (${withUnit(averageOf(ranked[0]))}) and ${same} (${withUnit(worstOf(steady))}); ${constantPart}`;
  }

  // -------------------------------------------------------------------------------------------------------- controls
  function drawMethods() {
    byId("methods").replaceChildren(...view().methods.map((method) => {
      const icon = drawn("svg", { width: 14, height: 14, viewBox: "-6 -6 12 12", "aria-hidden": "true" });
      icon.append(drawn("path", { d: pathOf(method.shape), fill: fitted(method.colour) }));
      const button = element("button", { type: "button", "aria-pressed": String(!state.hidden.has(method.name)), class: state.picked === method.name ? "picked" : null, "data-method": method.name }, icon, method.name);
      button.addEventListener("click", () => {
        if (state.hidden.has(method.name)) state.hidden.delete(method.name);
        else state.hidden.add(method.name);
        if (state.hidden.has(state.picked)) state.picked = null;
        draw();
        byId("methods").querySelector(`[data-method="${CSS.escape(method.name)}"]`).focus();
      });
      return button;
    }));
  }
  function fill(id, options, chosen) {
    byId(id).replaceChildren(...options.map(([value, text]) => element("option", { value, selected: String(value) === String(chosen) }, text)));
  }
  function choose(client, then) {
    state.client = client;
    byId("client").value = String(client);
    draw();
    if (then) then();
  }
  function start() {
    const here = section();
    state.view = Math.min(state.view, here.views.length - 1);
    state.client = -1;
    state.picked = null;
    state.hidden = new Set();
    state.shown = "shifted";
    for (const first of document.querySelectorAll(".first")) first.hidden = Number(first.dataset.of) !== state.section;
    byId("client-word").textContent = here.words.client[0].toUpperCase() + here.words.client.slice(1);
    byId("h-clients").textContent = `By ${here.own ? here.words.client : "client"}`;
    byId("rule-box").hidden = here.views.length < 2;
    fill("rule", here.views.map((one, index) => [index, one.rule]), state.view);
    fill("client", [[-1, `all ${here.clients.length} (mean)`], ...here.clients.map((name, index) => [index, name])], -1);
    const shifted = here.spectrum.length > 1 ? `mean over ${here.spectrum[0]} … ${here.spectrum[here.spectrum.length - 1]}` : here.spectrum[0];
    fill("case", [["shifted", shifted], ...(here.cases.length > 1 ? here.cases.map((c) => [c.name, here.own ? c.name : `test context ${c.name}`]) : []), ["risk", "training risk of the global model"]], "shifted");
    draw();
  }
  function draw() {
    byId("tip").hidden = true;
    drawMethods(); drawSentence(); drawSpectrum(); drawNumbers(); drawCompared(); drawClients(); drawLearning(); drawSettings();
  }
  byId("rule").addEventListener("change", (event) => { state.view = Number(event.target.value); state.picked = null; draw(); });
  byId("client").addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("case").addEventListener("change", (event) => { state.shown = event.target.value; drawLearning(); });
  byId("paper").addEventListener("change", (event) => { state.paper = event.target.checked; draw(); });
  byId("all").addEventListener("click", () => { state.hidden = new Set(); draw(); });
  byId("none").addEventListener("click", () => { state.hidden = new Set(view().methods.map((method) => method.name)); state.picked = null; draw(); });
  for (const tab of document.querySelectorAll("[data-section]")) {
    tab.addEventListener("click", () => {
      state.section = Number(tab.dataset.section);
      for (const other of document.querySelectorAll("[data-section]")) other.setAttribute("aria-pressed", String(other === tab));
      start();
    });
  }

  // ------------------------------------------------------------------------------------------------------- downloads
  const quoted = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  function save(name, lines) {
    const text = lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";
    const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type: "text/csv" })) });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  byId("csv-table").addEventListener("click", () => {
    const { columns, rows } = tableRows();
    save(`${section().experiment}-table.csv`, [["Method", ...columns], ...rows.map((row) => [row.name, ...columns.map((column) => format(row.values[column]))])]);
  });
  byId("csv-all").addEventListener("click", () => {
    const lines = [["rule", "method", "test_context", "client", "seed", "round", "value", "deviation_over_seeds"]];
    for (const one of section().views) for (const method of one.methods) for (const { name } of section().cases) {
      lines.push([one.rule, method.name, name, "mean", "mean", span(method.rounds), method.cases[name][0], method.cases[name][1]]);
      method.by_seed[name].forEach((value, at) => lines.push([one.rule, method.name, name, "mean", method.seeds[at], method.rounds[at], value, ""]));
      method.clients.forEach((values, at) => lines.push([one.rule, method.name, name, section().clients[at], "mean", span(method.rounds), values[name], ""]));
    }
    save(`${section().experiment}-numbers.csv`, lines);
  });

  // ----------------------------------------------------------------------------------------------------------- theme
  const button = byId("theme");
  function dress() {
    button.setAttribute("aria-pressed", String(isDark()));
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    button.removeAttribute("aria-pressed");
  }
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    dress();
    draw();
  });
  media.addEventListener("change", () => { dress(); draw(); });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; draw(); } });
  dress();
  start();
})();
