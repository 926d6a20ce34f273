// A netlist of gates, evaluated for 512 cases at once: every wire is a word of 512 bits.

#include <stdint.h>
#include <string.h>

typedef uint64_t word __attribute__((vector_size(64)));

enum { AND, OR, XOR, XNOR, NAND, NOR, ANDNOT, ORNOT, NOT, MUX };

typedef struct {
    int32_t kind, a, b, s, y;
} gate;

typedef struct {
    const gate *gates;
    const int32_t *inputs, *outputs, *next, *state; // slots; a flip-flop takes next into state
    int64_t n_gates, n_inputs, n_outputs, n_state;
} netlist;

static void settle(const gate *g, const gate *end, word *v) {
    for (; g < end; g++) {
        word a = v[g->a], b = v[g->b];
        switch (g->kind) {
        case AND: v[g->y] = a & b; break;
        case OR: v[g->y] = a | b; break;
        case XOR: v[g->y] = a ^ b; break;
        case XNOR: v[g->y] = ~(a ^ b); break;
        case NAND: v[g->y] = ~(a & b); break;
        case NOR: v[g->y] = ~(a | b); break;
        case ANDNOT: v[g->y] = a & ~b; break;
        case ORNOT: v[g->y] = a | ~b; break;
        case NOT: v[g->y] = ~a; break;
        default: v[g->y] = a ^ ((a ^ b) & v[g->s]);
        }
    }
}

// x: (inputs, blocks) words, y: (outputs, blocks); a block of cases enters in every cycle, and its
// outputs are taken `latency` cycles later. held: room for n_state words.
void lp_gates(const netlist *n, const word *x, word *y, int64_t blocks, int64_t latency, word *v,
              word *held) {
    for (int64_t t = 0; t < blocks + latency; t++) {
        for (int64_t k = 0; t < blocks && k < n->n_inputs; k++)
            v[n->inputs[k]] = x[k * blocks + t];
        settle(n->gates, n->gates + n->n_gates, v);
        for (int64_t k = 0; t >= latency && k < n->n_outputs; k++)
            y[k * blocks + t - latency] = v[n->outputs[k]];
        for (int64_t k = 0; k < n->n_state; k++)
            held[k] = v[n->next[k]];
        for (int64_t k = 0; k < n->n_state; k++)
            v[n->state[k]] = held[k];
    }
}
