// Software pipelining of loops with one product that the threads have work for: a factor that they
// make in registers, or a result of the iteration's own that they take further. The product of the
// next iteration is issued before that of this one is awaited, so that the tensor core goes on
// while the threads compute.
//
//   make(i); dot(i); use(i)   becomes   make(i + 1); dot(i + 1); await dot(i); use(i)
//
// Where what is read for `use` does not fit into registers beside two products, the last one is
// complete, and its slots are free, before the next is issued, which the threads then work beside:
//
//   make(i); dot(i); use(i)   becomes   await dot(i); read(i); make(i + 1); dot(i + 1); use(i)
//
// Two iterations are under way at a time, so the loop takes several in a round: registers that an
// iteration writes before it reads them have a second set for every other one, while sums that pass
// from one to the next stay where they are. What is left of the loop after whole rounds follows as
// it was. Warpgroups of an agent issue the products of a round in turn where these add to the same
// sums, which is faster (docs/performance/fp8.md, 'Why the defaults are what they are').
// Where each has sums of its own, which are scaled and added afterwards, the role says who is ahead
// and whether in turn (Resource::products). The pass stands after split_agents, which made products
// asynchronous and keeps those in flight that need no such registers, and after overlap_products,
// which has loops with two products.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// Roles whose products are awaited at once stay. Products of 32-bit factors stay, as do loops whose
// registers would not hold two iterations. UserError where a role asks for an order among
// warpgroups (Resource::stagger, products in turn) and has none that share a product (refuse.h).
Program stagger_products(Program program);

}  // namespace stretto
