// Learners of a page without a server: linear networks, softmax layers and explicit algorithms, in double precision.
// A context is {x: rows of inputs, y: labels}; a learner maps it and queries to one prediction per query.
"use strict";
window.mesascope = window.mesascope || {};
(() => {
  const dot = (a, b) => { let sum = 0; for (let i = 0; i < a.length; i++) sum += a[i] * b[i]; return sum; };
  const times = (m, v) => m.map((row) => dot(row, v));
  const plus = (a, b, c = 1) => a.map((one, i) => one + c * b[i]);
  const mean = (v) => (v.length ? v.reduce((a, b) => a + b, 0) / v.length : 0);
  // X'Y and X'X of rows.
  const cross = (x, y, d) => Array.from({ length: d }, (_, j) => { let s = 0; x.forEach((row, i) => { s += row[j] * y[i]; }); return s; });
  const gram = (x, d) => Array.from({ length: d }, (_, j) => cross(x, x.map((row) => row[j]), d));
  // Solution of a symmetric positive definite system, by Cholesky.
  const solve = (a, b) => {
    const n = b.length, l = a.map((row) => row.slice()), v = b.slice();
    for (let j = 0; j < n; j++) {
      for (let k = 0; k < j; k++) for (let i = j; i < n; i++) l[i][j] -= l[i][k] * l[j][k];
      const root = Math.sqrt(l[j][j]);
      for (let i = j; i < n; i++) l[i][j] /= root;
    }
    for (let i = 0; i < n; i++) { for (let k = 0; k < i; k++) v[i] -= l[i][k] * v[k]; v[i] /= l[i][i]; }
    for (let i = n - 1; i >= 0; i--) { for (let k = i + 1; k < n; k++) v[i] -= l[k][i] * v[k]; v[i] /= l[i][i]; }
    return v;
  };
  const softmax = (scores) => {
    const most = Math.max(...scores), e = scores.map((one) => Math.exp(one - most)), sum = e.reduce((a, b) => a + b, 0);
    return e.map((one) => one / sum);
  };
  const linear = (w) => (xq) => xq.map((q) => dot(w, q));
  const gap = (a, b) => plus(a, b, -1);
  const squared = (a, b) => { const g = gap(a, b); return dot(g, g); };
  const KERNELS = {
    gaussian: (q, x, h) => -squared(q, x) / (2 * h * h),
    laplace: (q, x, h) => -Math.sqrt(squared(q, x)) / h,
    exponential: (q, x, h) => dot(q, x) / h,
  };
  const RIDGE_KERNELS = {
    gaussian: (q, x, h) => Math.exp(KERNELS.gaussian(q, x, h)),
    laplace: (q, x, h) => Math.exp(KERNELS.laplace(q, x, h)),
    manhattan: (q, x, h) => Math.exp(-gap(q, x).reduce((s, one) => s + Math.abs(one), 0) / h),
    quadratic: (q, x, h) => (1 + dot(q, x) / (h * h)) ** 2,
    cubic: (q, x, h) => (1 + dot(q, x) / (h * h)) ** 3,
  };
  const descend = ({ x, y }, steps, direction) => {
    let w = x.length ? x[0].map(() => 0) : null;
    if (!w) return (xq) => xq.map(() => 0);
    const state = {};
    for (let step = 0; step < steps; step++) {
      const residual = x.map((row, i) => y[i] - dot(w, row)), g = cross(x, residual, w.length).map((one) => one / x.length);
      w = direction(w, g, step, state);
    }
    return linear(w);
  };
  const smoother = (kernel) => ({ x, y }, { bandwidth }) => (xq) =>
    xq.map((q) => (x.length ? dot(softmax(x.map((row) => KERNELS[kernel](q, row, bandwidth))), y) : 0));
  const kernelRidge = (kernel) => ({ x, y }, { bandwidth, ridge }) => {
    const k = RIDGE_KERNELS[kernel], a = x.map((row, i) => x.map((other, j) => k(row, other, bandwidth) + (i === j ? ridge : 0)));
    const w = solve(a, y);
    return (xq) => xq.map((q) => dot(w, x.map((row) => k(q, row, bandwidth))));
  };
  const ridge = ({ x, y }, own) => {
    if (!x.length) return (xq) => xq.map(() => 0);
    const d = x[0].length, a = gram(x, d).map((row, i) => row.map((one, j) => one + (i === j ? own.ridge : 0)));
    return linear(solve(a, cross(x, y, d)));
  };
  const gradientDescent = (context, { steps, eta }) => descend(context, steps, (w, g) => plus(w, g, eta));
  const centred = (learner) => ({ x, y }, own) => {
    const middle = x.length ? x[0].map((_, j) => mean(x.map((row) => row[j]))) : [];
    return learner({ x: x.map((row) => gap(row, middle)), y }, own);
  };
  const plusPlus = ({ x, y }, { steps, eta, gamma }) => (xq) => {
    let [rows, labels, queries, out] = [x, y, xq, xq.map(() => 0)];
    if (!x.length) return out;
    const d = x[0].length;
    for (let step = 0; step < steps; step++) {
      const w = cross(rows, labels, d).map((one) => (one * eta) / x.length), g = gram(rows, d);
      out = out.map((one, i) => one + dot(w, queries[i]));
      labels = labels.map((one, i) => one - dot(w, rows[i]));
      const bend = (row) => plus(row, times(g, row), -gamma);
      [rows, queries] = [rows.map(bend), queries.map(bend)];
    }
    return out;
  };
  const newton = ({ x, y }, { steps }) => {
    if (!x.length) return (xq) => xq.map(() => 0);
    const d = x[0].length, s = gram(x, d), v = cross(x, y, d);
    const scale = Math.max(...s.map((row) => row.reduce((a, b) => a + Math.abs(b), 0))) ** 2 || 1;
    const product = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, one, k) => sum + one * b[k][j], 0)));
    let m = s.map((row) => row.map((one) => one / scale));
    for (let step = 0; step < steps; step++) {
      const msm = product(product(m, s), m);
      m = m.map((row, i) => row.map((one, j) => 2 * one - msm[i][j]));
    }
    return linear(times(m, v));
  };
  const neighbours = ({ x, y }, { k }) => (xq) => xq.map((q) => {
    const order = x.map((row, i) => [squared(q, row), i]).sort((a, b) => a[0] - b[0]).slice(0, k);
    return mean(order.map(([, i]) => y[i]));
  });
  // Names are those of the catalogue of identify.
  const LEARNERS = {
    zero: () => (xq) => xq.map(() => 0),
    mean: ({ y }) => (xq) => xq.map(() => mean(y)),
    "last label": ({ y }) => (xq) => xq.map(() => (y.length ? y[y.length - 1] : 0)),
    averaging: (context) => gradientDescent(context, { steps: 1, eta: 1 }),
    "gradient-descent": gradientDescent,
    "gradient-descent-plus-plus": plusPlus,
    "centred gradient-descent": centred(gradientDescent),
    "ridge least-squares": ridge,
    "centred least-squares": centred(ridge),
    newton,
    "nearest-neighbours": neighbours,
    ...Object.fromEntries(Object.keys(KERNELS).map((one) => [`${one} kernel-smoother`, smoother(one)])),
    ...Object.fromEntries(Object.keys(RIDGE_KERNELS).map((one) => [`${one} kernel-ridge`, kernelRidge(one)])),
  };
  // A network of attention layers on tokens (x, y), from its products W_KQ and W_PV of each layer and head.
  const network = ({ x, y }, { layers, softmax: soft }) => (xq) => {
    const width = layers[0].w_kq[0].length;
    let tokens = x.map((row, i) => [...row, y[i]]), queries = xq.map((row) => [...row, 0]);
    const reads = layers.map(({ w_kq, w_pv }) => w_kq.map((kq, head) => (token, context) => {
      const key = times(kq, token), scores = context.map((one) => dot(one, key));
      const weights = soft ? softmax(scores.map((one) => one / Math.sqrt(width))) : scores;
      const mixed = token.map((_, j) => { let s = 0; context.forEach((one, i) => { s += weights[i] * one[j]; }); return s; });
      return times(w_pv[head], mixed);
    }));
    if (!tokens.length) return xq.map(() => 0);
    for (const heads of reads) {
      const before = tokens, after = (token) => heads.reduce((sum, read) => plus(sum, read(token, before)), token);
      [tokens, queries] = [tokens.map(after), queries.map(after)];
    }
    return queries.map((token) => -token[width - 1]);
  };
  Object.assign(window.mesascope, {
    names: Object.keys(LEARNERS),
    learn: (name, own, context) => (name === "network" ? network : LEARNERS[name])(context, own),
    predict: (name, own, context, xq) => window.mesascope.learn(name, own, context)(xq),
    // Weight of each label in the prediction of the first query.
    weigh: (name, own, { x, y }, xq) => {
      const step = Math.sqrt(mean(y.map((one) => one * one))) || 1e-300;
      const at = (labels) => window.mesascope.predict(name, own, { x, y: labels }, xq)[0], base = at(y);
      return y.map((_, row) => (at(y.map((one, i) => one + (i === row ? step : 0))) - base) / step);
    },
  });
})();
