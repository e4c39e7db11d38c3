// Behaviour of the page in the browser: colours of light and dark, and points that are sent while they are dragged.
"use strict";
window.mesascope = window.mesascope || {};
(() => {
  const own = window.mesascope, dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const looks = () => ({
    Axis: { axis_label_text_color: colour("--ink"), major_label_text_color: colour("--ink"),
            axis_line_color: colour("--muted"), major_tick_line_color: colour("--muted"), minor_tick_line_color: null },
    Grid: { grid_line_color: colour("--muted") },
    Title: { text_color: colour("--ink") },
    Legend: { label_text_color: colour("--ink") },
    LabelSet: { text_color: colour("--ink") },
    ColorBar: { major_label_text_color: colour("--ink") },
  });
  own.paint = (doc) => {
    for (const [kind, values] of Object.entries(looks()))
      for (const model of doc._all_models.values())
        if (model.type.endsWith(kind)) model.setv(values, { sync: false });
  };
  const fold = (doc) => {
    for (const model of doc._all_models.values())
      if (model.type === "Legend") model.setv({ ncols: innerWidth < 700 ? 1 : 2 }, { sync: false });
  };
  // No style sheet of the page sets Bokeh's custom properties: do not ask for each of them at each paint.
  const plain = (view) => {
    let kind = view.visuals.background_fill;
    while (kind && !Object.hasOwn(kind, "_get_css_value")) kind = Object.getPrototypeOf(kind);
    if (kind) kind._get_css_value = () => "";
  };
  // Bokeh treats a long press as another gesture: disable it, so that a held point can still be dragged.
  const hold = (doc) => {
    const figure = doc.get_model_by_name("task_figure"), view = figure && window.Bokeh.index.find_one(figure);
    const gestures = view?.canvas_view?.ui_event_bus?.ui_gestures;
    if (gestures) { gestures.constructor.press_threshold = 2e9; plain(view); label(doc); }
    else setTimeout(() => hold(doc), 100);
  };
  // Tag the panels in view, for the server.
  let seen = null;
  const watch = (doc) => {
    seen?.disconnect();
    seen = new IntersectionObserver((changes) => {
      for (const { target, isIntersecting } of changes) {
        const mark = doc.get_model_by_name(target.id + "_mark");
        if (mark) mark.tags = isIntersecting ? ["seen"] : [];
      }
    });
    for (const section of document.querySelectorAll("section")) seen.observe(section);
  };
  // Sliders are named for screen readers.
  const label = (doc) => {
    for (const model of doc._all_models.values()) if (model.type === "Slider") {
      const handle = window.Bokeh.index.find_one(model)?.shadow_el.querySelector(".noUi-handle");
      handle?.setAttribute("aria-label", model.title);
    } else if (model.type === "Figure" && model.title?.text) {
      const canvas = window.Bokeh.index.find_one(model)?.el;
      canvas?.setAttribute("role", "img");
      canvas?.setAttribute("aria-label", model.title.text);
    }
  };
  const look = (doc) => { own.paint(doc); fold(doc); watch(doc); label(doc); };
  // Bokeh appends parts that the server adds later to the end of the page: move each to its place.
  const place = (model) => {
    const at = document.querySelector(`[data-place="${model.name}"]`), view = window.Bokeh.index.find_one(model);
    if (view?.el) at?.append(view.el); else setTimeout(() => place(model), 20);
  };
  own.ready = (doc) => {
    look(doc);
    doc.on_change((event) => { if (event.kind === "RootAdded") place(event.model); });
    // Panels that the server added before this script listened are placed now.
    for (const root of doc.roots()) if (document.querySelector(`[data-place="${root.name}"]`)) place(root);
    const tags = doc.get_model_by_name("answer")?.tags ?? [];
    if (tags.length) own.handed(tags);
    addEventListener("resize", () => fold(doc));
    dark.addEventListener("change", () => own.paint(doc));
    hold(doc);
    document.body.classList.add("ready");
  };
  const find = () => {
    const doc = window.Bokeh?.documents[0];
    if (doc?.roots().length) own.ready(doc); else setTimeout(find, 30);
  };
  // The server computes predictions from now on; "complete" means that it has added the other panels.
  own.handed = (tags) => {
    own.compute = null;
    if (!tags.includes("complete")) return;
    look(window.Bokeh.documents[0]);
    document.querySelector("main").classList.remove("waits");
  };
  find();

  // Buttons within tables choose a value of a menu.
  document.addEventListener("click", (event) => {
    const button = event.composedPath().find((one) => one.dataset?.menu);
    const doc = window.Bokeh?.documents[0];
    if (button) for (const model of doc._all_models.values())
      if (model.name === "menu_" + button.dataset.menu) model.value = button.dataset.value;
  });

  // Rows of the query and the pairs, in the form of the source "live".
  const rows = ({ points, query }) => {
    const [p, q] = [points.data, query.data], at = (data, name) => Array.from(data[name] ?? []);
    const flat = (x, y, pair) => ({ x: Array.from(x), y: Array.from(y), pair: Array.from(pair) });
    return flat([q.x[0], ...at(p, "x")], [0, ...at(p, "y")], [-1, ...at(p, "pair")]);
  };
  const same = (a, b) => ["x", "y", "pair"].every((k) =>
    a[k].length === b[k].length && a[k].every((value, i) => Math.abs(value - b[k][i]) < 1e-12));
  let waiting = false, again = null, since = 0;
  own.times = [];
  // Send points while they are dragged, each time after the server has answered the last ones.
  own.dragged = (drawing) => {
    if (!(drawing.query.data.x ?? []).length && drawing.live.data.x.length) { // there is always a query
      drawing.query.data = { x: [drawing.live.data.x[0]], y: [0] };
      return;
    }
    if (!drawing.live.data.x.length) return; // the server is sending a task
    const now = rows(drawing);
    if (same(now, { x: [...drawing.live.data.x], y: [...drawing.live.data.y], pair: [...drawing.live.data.pair] })) return;
    if (own.compute) { drawing.live.setv({ data: now }); own.compute(); return; }
    if (waiting && performance.now() - since < 1000) { again = drawing; return; }
    [waiting, since] = [true, performance.now()];
    const answered = () => {
      drawing.curves.properties.data.change.disconnect(answered);
      own.times.push(performance.now() - since);
      waiting = false;
      if (again) { const next = again; again = null; own.dragged(next); }
    };
    drawing.curves.properties.data.change.connect(answered);
    drawing.live.data = now;
  };
})();
