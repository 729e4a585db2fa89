// What the kernels compute, as sums over rows in double. Rows of no item, and slots of none, stay NaN.
#pragma once

#include "problem.h"

namespace kernel_test {

using Rows = std::vector<double>;  // as a tensor, or with one column

inline Rows no_rows(int heads, const Problem& p, int width) {
  return Rows(static_cast<size_t>(heads) * p.tokens * width, NAN);
}

// Each token of an item of so many heads.
template <class Visit>
void each_row(int heads, const Problem& p, Visit visit) {
  for (int head = 0; head < heads; ++head) {
    for (int token = 0; token < p.tokens; ++token) {
      if (p.item_of[token] != kNoItem) {
        visit(head, token, static_cast<size_t>(head) * p.tokens + token);
      }
    }
  }
}

struct ForwardSums {
  Rows g, o;

  explicit ForwardSums(const Problem& p) : g(no_rows(p.heads, p, 1)), o(no_rows(p.heads, p, p.value_dim)) {
    each_row(p.heads, p, [&](int head, int i, size_t row) {
      const int kv = p.kv(head);
      g[row] = p.normalizer(head, i);
      std::vector<double> sum(p.value_dim);
      for (int j = 0; j < p.value_dim; ++j) {
        sum[j] = kOffset * p.before.u_at(kv, p.slot(i), j);
        for (int m = 0; m < p.key_dim; ++m) {
          sum[j] += p.slope(head) * p.before.s_at(kv, p.slot(i), m, j) * p.query(head, i, m);
        }
      }
      for (int n = p.start(i); n <= i; ++n) {
        const double weight = kOffset + p.slope(head) * p.score(head, i, n);
        for (int j = 0; j < p.value_dim; ++j) {
          sum[j] += weight * p.v.at(kv, n, j);
        }
      }
      for (int j = 0; j < p.value_dim; ++j) {
        o[row * p.value_dim + j] = sum[j] / g[row];
      }
    });
  }
};

struct QueryGradientSums {
  Rows dq;
  Rows da_terms;  // of the rows
  Rows da, db;    // of [head, item]

  explicit QueryGradientSums(const Problem& p)
      : dq(no_rows(p.heads, p, p.key_dim)),
        da_terms(no_rows(p.heads, p, 1)),
        da(static_cast<size_t>(p.heads) * p.items),
        db(static_cast<size_t>(p.heads) * p.items) {
    each_row(p.heads, p, [&](int head, int i, size_t row) {
      const int kv = p.kv(head);
      const int slot = p.slot(i);
      double weight = -p.d_of(head, i) * p.count(i);
      std::vector<double> sum(p.key_dim);
      for (int j = 0; j < p.value_dim; ++j) {
        weight += p.before.u_at(kv, slot, j) * p.dO.at(head, i, j);
      }
      for (int m = 0; m < p.key_dim; ++m) {
        sum[m] = -p.d_of(head, i) * p.before.z_at(kv, slot, m);
        for (int j = 0; j < p.value_dim; ++j) {
          sum[m] += p.before.s_at(kv, slot, m, j) * p.dO.at(head, i, j);
        }
      }
      for (int n = p.start(i); n <= i; ++n) {
        const double product = p.value_score(head, i, n);
        weight += product;
        for (int m = 0; m < p.key_dim; ++m) {
          sum[m] += (product - p.d_of(head, i)) * p.key(kv, n, m);
        }
      }
      const size_t item = static_cast<size_t>(head) * p.items + p.item_of[i];
      da_terms[row] = weight / p.g_of(head, i);
      da[item] += da_terms[row];
      for (int m = 0; m < p.key_dim; ++m) {
        db[item] += p.sums_slope ? p.query(head, i, m) * sum[m] / p.g_of(head, i) : 0;
        dq[row * p.key_dim + m] = p.slope(head) * sum[m] / p.g_of(head, i);
      }
    });
  }
};

struct KeyValueGradientSums {
  Rows dk, dv;

  explicit KeyValueGradientSums(const Problem& p)
      : dk(no_rows(p.kv_heads, p, p.key_dim)), dv(no_rows(p.kv_heads, p, p.value_dim)) {
    each_row(p.kv_heads, p, [&](int kv, int n, size_t row) {
      const int slot = p.slot(n);
      double* const key_sum = &dk[row * p.key_dim];
      double* const value_sum = &dv[row * p.value_dim];
      for (int m = 0; m < p.key_dim; ++m) {
        key_sum[m] = p.after.z_at(kv, slot, m);
        for (int j = 0; j < p.value_dim; ++j) {
          key_sum[m] += static_cast<double>(p.after.s_at(kv, slot, m, j)) * p.v.at(kv, n, j);
        }
      }
      for (int j = 0; j < p.value_dim; ++j) {
        value_sum[j] = p.after.u_at(kv, slot, j);
        for (int m = 0; m < p.key_dim; ++m) {
          value_sum[j] += p.after.s_at(kv, slot, m, j) * p.key(kv, n, m);
        }
      }
      for (int head = kv * p.group; head < (kv + 1) * p.group; ++head) {
        for (int i = n; i < p.end(n); ++i) {
          const double slope = p.slope(head) * (p.value_score(head, i, n) - p.d_of(head, i)) / p.g_of(head, i);
          const double weight = (kOffset + p.slope(head) * p.score(head, i, n)) / p.g_of(head, i);
          for (int m = 0; m < p.key_dim; ++m) {
            key_sum[m] += slope * p.query(head, i, m);
          }
          for (int j = 0; j < p.value_dim; ++j) {
            value_sum[j] += weight * p.dO.at(head, i, j);
          }
        }
      }
    });
  }
};

// Of the slots of items what stands in `from`, or zero.
inline States<double> start_of_items(const Problem& p, const States<float>* from) {
  States<double> states(p.states_of_nothing());
  for (int kv = 0; kv < p.kv_heads; ++kv) {
    for (const Item& item : p.shape.items) {
      for (int m = 0; m < p.key_dim; ++m) {
        states.z_at(kv, item.slot, m) = from == nullptr ? 0 : from->z_at(kv, item.slot, m);
        for (int j = 0; j < p.value_dim; ++j) {
          states.s_at(kv, item.slot, m, j) = from == nullptr ? 0 : from->s_at(kv, item.slot, m, j);
        }
      }
      for (int j = 0; j < p.value_dim; ++j) {
        states.u_at(kv, item.slot, j) = from == nullptr ? 0 : from->u_at(kv, item.slot, j);
      }
    }
  }
  return states;
}

// S, z and u after items that start from such states.
inline States<double> states_after(const Problem& p, const States<float>* before) {
  States<double> states = start_of_items(p, before);
  each_row(p.kv_heads, p, [&](int kv, int n, size_t) {
    for (int m = 0; m < p.key_dim; ++m) {
      states.z_at(kv, p.slot(n), m) += p.key(kv, n, m);
      for (int j = 0; j < p.value_dim; ++j) {
        states.s_at(kv, p.slot(n), m, j) += p.key(kv, n, m) * p.v.at(kv, n, j);
      }
    }
    for (int j = 0; j < p.value_dim; ++j) {
      states.u_at(kv, p.slot(n), j) += p.v.at(kv, n, j);
    }
  });
  return states;
}

// dS, dz and du before items with such gradients after them.
inline States<double> gradients_before(const Problem& p, const States<float>* after) {
  States<double> states = start_of_items(p, after);
  each_row(p.heads, p, [&](int head, int i, size_t) {
    const int kv = p.kv(head);
    for (int m = 0; m < p.key_dim; ++m) {
      const double slope = p.slope(head) * p.query(head, i, m) / p.g_of(head, i);
      states.z_at(kv, p.slot(i), m) -= slope * p.d_of(head, i);
      for (int j = 0; j < p.value_dim; ++j) {
        states.s_at(kv, p.slot(i), m, j) += slope * p.dO.at(head, i, j);
      }
    }
    for (int j = 0; j < p.value_dim; ++j) {
      states.u_at(kv, p.slot(i), j) += kOffset * p.dO.at(head, i, j) / p.g_of(head, i);
    }
  });
  return states;
}

}  // namespace kernel_test
