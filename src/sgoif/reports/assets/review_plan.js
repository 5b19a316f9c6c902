// Which examples to look at: the plan of `sgoif.tasks.review`, whose Python has the explanation.

const KEY_STEP = 0x9e3779b9;
const KEY_ROOM = 2 ** 21; // no stratum has more rows than this; key and place together are exact in a double

function mixBits(bits) {
  let mixed = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}

/** The positions of every stratum, each in its random order. */
function drawOrders({ ends, seed }) {
  const start = mixBits(seed + KEY_STEP);
  return ends.map((end, stratum) => {
    const first = stratum ? ends[stratum - 1] : 0;
    const keys = new Float64Array(end - first);
    for (let i = 0; i < keys.length; i++) keys[i] = mixBits(mixBits((first + i) ^ start) + KEY_STEP) * KEY_ROOM + i;
    return Uint32Array.from(keys.sort(), (key) => first + (key % KEY_ROOM));
  });
}

/** All positions in the order of the draw, without those that nobody can decide about. */
function* drawn(orders, skipped) {
  let lines = orders.map((order) => ({ order, at: 0 })).reverse();
  while (lines.length) {
    const going = [];
    for (const line of lines) {
      while (skipped.has(line.order[line.at])) line.at += 1;
      if (line.at >= line.order.length) continue;
      yield line.order[line.at];
      line.at += 1;
      going.push(line);
    }
    lines = going;
  }
}

/** The first so many positions to look at. */
function firstDrawn(orders, skipped, count) {
  const found = [];
  if (count > 0) {
    for (const position of drawn(orders, skipped)) if (found.push(position) === count) break;
  }
  return found;
}
