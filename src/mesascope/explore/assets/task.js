// The one-task panel of a saved page, or until the server takes over: settings, points and curves.
"use strict";
(() => {
  const own = window.mesascope, POINTS = 81, LARGEST = 56, MOST_LABELS = 12, ROLES = ["network", "algorithm", "ridge", "chosen"];
  let page, drawing, widgets, subject, direction, rest, quiet = false, seed = 0;
  const value = (name) => widgets[name].value;
  const quietly = (action) => { const before = quiet; quiet = true; action(); quiet = before; };
  const local = (model, values) => model.setv(values, { sync: false }); // a server computes them anew
  const parameterOf = (span, share) => {
    if (span.scale === "log") return Number((span.low * (span.high / span.low) ** share).toPrecision(6));
    const number = span.low + share * (span.high - span.low);
    return span.scale === "integer" ? Math.round(number) : number;
  };
  const freeOf = () => Object.keys(page.catalogue[value("chosen")]).find((one) => !["eta", "gamma", "steps"].includes(one));
  const parameters = (name) => {
    const sliders = { eta: value("eta"), gamma: value("gamma"), steps: value("depth") }, free = freeOf();
    return Object.fromEntries(Object.entries(page.catalogue[name]).map(([key, span]) => {
      if (key in sliders) return [key, Math.min(Math.max(sliders[key], span.low), span.high)];
      return [key, parameterOf(span, key === free ? value("free") : 0.5)];
    }));
  };
  // Name and settings of each learner, as mesascope.predict takes them.
  own.roles = () => {
    const depth = value("depth"), layers = subject.looped ? Array(depth).fill(subject.layers[0]) : subject.layers;
    return {
      network: ["network", { layers, softmax: subject.softmax }],
      algorithm: [subject.algorithm, { steps: depth, eta: value("eta"), gamma: value("gamma") }],
      ridge: ["ridge least-squares", { ridge: Math.max((value("noise") / subject.w_scale) ** 2, page.least_ridge) }],
      chosen: [value("chosen"), parameters(value("chosen"))],
    };
  };
  const dot = (a, b) => a.reduce((sum, one, i) => sum + one * b[i], 0);
  const along = (place, more) => direction.map((one, i) => place * one + (more ? more[i] : 0));
  const rows = () => {
    const { x, y, pair } = drawing.live.data;
    return Array.from(x).map((one, i) => [one, y[i], pair[i]]);
  };
  own.context = () => {
    const pairs = rows().slice(1);
    return { x: pairs.map(([x, , pair]) => along(x, rest[pair])), y: pairs.map((one) => one[1]) };
  };
  const put = (found) => {
    const [x, y, pair] = [0, 1, 2].map((i) => found.map((row) => row[i]));
    drawing.live.data = { x, y, pair };
    drawing.query.data = { x: x.slice(0, 1), y: [0] };
    drawing.points.data = { x: x.slice(1), y: y.slice(1), pair: pair.slice(1) };
  };
  const draw = () => {
    const task = subject.tasks[seed % subject.tasks.length], scale = value("scale"), pairs = value("pairs");
    const norm = Math.sqrt(dot(task.xq, task.xq));
    direction = task.xq.length > 1 ? task.xq.map((one) => one / norm) : [1];
    const x = task.x.slice(0, pairs).map((row) => row.map((one) => one * scale));
    const places = x.map((row) => dot(row, direction));
    rest = x.map((row, i) => row.map((one, j) => one - places[i] * direction[j]));
    const y = x.map((_, i) => scale * task.y[i] + value("noise") * task.noise[i]);
    put([[scale * dot(task.xq, direction), 0, -1], ...places.map((place, i) => [place, y[i], i])]);
  };
  // Bokeh calls own.moved only later, when fields have been filled: numbers that show a point do not move it.
  const shown = (number) => Number(number.toPrecision(4)), kept = (field, old) => field.value === shown(old) ? old : field.value ?? 0;
  const point = () => quietly(() => {
    const found = rows(), options = ["query", ...found.slice(1).map((_, i) => String(i + 1))], menu = widgets.pair;
    menu.options = options;
    if (!options.includes(menu.value)) menu.value = "query";
    const [x, y] = found[options.indexOf(menu.value)], chosen = menu.value === "query";
    widgets.x.value = shown(x); widgets.y.value = shown(y);
    widgets.y.disabled = widgets.delete.disabled = chosen;
  });
  const compute = () => {
    const context = own.context(), found = rows(), places = found.map((one) => one[0]);
    const reach = 1.15 * Math.max(...places.map(Math.abs), 1e-3);
    const grid = Array.from({ length: POINTS }, (_, i) => -reach + (2 * reach * i) / (POINTS - 1));
    const xq = [places[0], ...grid].map((place) => along(place)), roles = own.roles();
    const answers = Object.fromEntries(ROLES.map((role) => [role, own.predict(...roles[role], context, xq)]));
    const take = (from, to) => Object.fromEntries(ROLES.map((role) => [role, answers[role].slice(from, to)]));
    local(drawing.answers, { data: { x: [places[0]], ...take(0, 1) } });
    local(drawing.curves, { data: { x: grid, ...take(1) } });
    const weights = own.weigh(...roles.network, context, xq.slice(0, 1)), most = Math.max(...weights.map(Math.abs), 1e-12);
    local(drawing.marks, { data: {
      x: places.slice(1), y: context.y, weight: weights, size: weights.map((one) => LARGEST * Math.sqrt(Math.abs(one) / most)),
      colour: weights.map((one) => (one >= 0 ? page.signs[0] : page.signs[1])),
      text: weights.map((one) => (weights.length <= MOST_LABELS && Math.abs(one) >= 0.005 ? one.toFixed(2) : "")),
    } });
    local(page.line, { location: places[0] });
    const titles = { ...subject.titles, chosen: `${value("chosen")} (chosen)` };
    page.legend.items.forEach((item, i) => local(item, { label: { value: titles[ROLES[i]] } }));
    local(page.answer, { text: `Predictions at the query: ${ROLES.map((role) => `${titles[role]}: ${Number(answers[role][0].toPrecision(4))}`).join("; ")}. ${page.discs}` });
    point();
  };
  const show = () => {
    const free = freeOf(), name = value("chosen");
    const shown = free ? `${free} = ${Number(parameterOf(page.catalogue[name][free], value("free")).toPrecision(3))}` : "none";
    widgets.free.title = `Parameter ${shown}`;
    widgets.free.disabled = !free;
    widgets.gamma.disabled = !subject.gamma;
    page.figure.below[0].axis_label = subject.d > 1 ? "input along the query's direction" : "input x";
  };
  const choose = () => {
    subject = page.subjects[value("subject")];
    quietly(() => Object.entries(subject.values).forEach(([name, one]) => {
      widgets[name].setv({ end: Math.max(widgets[name].end, 2 * one), value: one });
    }));
    draw();
  };
  const typed = () => {
    const found = rows(), index = value("pair") === "query" ? 0 : Number(value("pair"));
    const [x, y, pair] = found[index], now = [kept(widgets.x, x), index ? kept(widgets.y, y) : 0, pair];
    if (now[0] === x && now[1] === y) return;
    found[index] = now;
    put(found);
  };
  // Called when a control is used, with the name of its widget.
  own.moved = (name) => {
    if (quiet || !own.compute) return;
    if (name === "subject") choose();
    if (name === "again") widgets.again.tags = [++seed];
    if (["scale", "noise", "pairs", "again"].includes(name)) draw();
    if (name === "x" || name === "y") typed();
    if (name === "pair") { point(); return; }
    if (name === "add") { const found = rows(); put([...found, [found[0][0], 0, -1]]); quietly(() => { widgets.pair.options = [...widgets.pair.options, String(found.length)]; widgets.pair.value = String(found.length); }); }
    if (name === "delete" && value("pair") !== "query") { const found = rows(); found.splice(Number(value("pair")), 1); put(found); }
    show();
    own.compute();
  };
  own.start = (parts, sources, controls, payload) => {
    if (parts.answer.tags.length) return; // the server answers already
    [own.payload, own.compute] = [payload, compute];
    [drawing, widgets, page] = [sources, controls, { ...payload, ...parts }];
    choose();
    show();
    own.compute();
  };
})();
