"""The mesa-layer: attention that solves a least-squares problem at every token.

    W_t = argmin_W 1/2 sum_{i<=t} g_t/g_i beta_i |v_i - W k_i|^2 + 1/2 tr(W diag(r_t) W^T),    y_t = W_t q_t,

with g_t the product of the forget factors up to t. With H_t = sum_{i<=t} g_t/g_i beta_i k_i k_i^T and G_t = sum_{i<=t}
g_t/g_i beta_i v_i k_i^T, y_t = G_t (H_t + diag(r_t))^{-1} q_t. The ridge decays like the pairs, r_t = g_t ridge (von
Oswald 2024, eqs. 3.12-3.15), is constant, r_t = ridge (MesaNet), or grows with H, r_t = ridge |H_t|_F (Gated KalmaNet).

With a decaying ridge, systems are solved by factorisation of chunks of C tokens. This costs 6 T (C d + d^2)
multiplications, two thirds more with a correction, and 2 T/C factorisations. With other ridges, systems are solved by
conjugate gradients, preconditioned by these factors if that is cheaper. Chunks that forget much are split.
`torch.compile` compiles either method into one graph, without value checks of arguments and outputs.

| module | contents |
|---|---|
| `api` | `mesa_attention`, `mesa_step` and `mesa_state`, with their checks of arguments |
| `chunks` | a sequence in chunks of time, and the state at the start of each chunk |
| `equations` | the normal equations of a chunk, and their factorisation |
| `solve` | the exact solver |
| `implicit` | derivatives of the solution |
| `decode` | states, and one token at a time |
| `parallel` | a sequence that is split over several processes |
| `published` | published methods, for comparison with the exact one |
"""
