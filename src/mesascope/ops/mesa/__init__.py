"""The mesa-layer: attention that solves a least-squares problem at every token.

    W_t = argmin_W 1/2 sum_{i<=t} g_t/g_i beta_i |v_i - W k_i|^2 + 1/2 tr(W diag(r_t) W^T),    y_t = W_t q_t,

with g_t the product of the forget factors up to t. Through H_t = sum_{i<=t} g_t/g_i beta_i k_i k_i^T and a like G_t
of v k^T, y_t = G_t (H_t + diag(r_t))^{-1} q_t. The ridge decays with the rest, r_t = g_t ridge (thesis, eqs. 3.12 to
3.15), is constant, r_t = ridge (MesaNet), or grows with H, r_t = ridge |H_t|_F (Gated KalmaNet).

A ridge that decays is solved by factors of chunks of C tokens, at 6 T (C d + d^2) multiplications, two thirds more for
a correction, and 2 T/C factorisations. One that does not is solved by conjugate gradients, which start from these
factors where that saves more than it costs. Chunks that forget much are cut. `torch.compile` takes either in one graph,
without the checks of values.

| module | contents |
|---|---|
| `api` | `mesa_attention`, `mesa_step` and `mesa_state`, with their checks of arguments |
| `chunks` | a sequence in chunks of time, and the states that chunks start from |
| `equations` | the normal equations of a chunk, and their factorisation |
| `solve` | the exact solver |
| `implicit` | derivatives of the solution |
| `decode` | one token at a time |
| `states` | states |
| `parallel` | a sequence whose parts lie in several processes |
| `published` | published methods, each beside the exact one |
"""
