// The K items with the largest logits in descending order; of equal ones, the smaller id comes first. NaN comes before all others, so that nobody misses it.
// A workgroup selects among the items of its part, one after another. An invocation remembers the best of its own items.

const NOTHING = 0xffffffffu;  // an id that no item has

struct Item {
    key: u32,  // larger for larger logits
    id: u32,
    bits: u32,  // bits of the logit
}

var<workgroup> best_key: atomic<u32>;
var<workgroup> best_id: atomic<u32>;

fn key_of(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0xfffffffeu; }
    if ((bits & 0x7fffffffu) == 0u) { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}

// Returns the best of the lane's items that come after (key, id).
fn best_after(row: u32, part: u32, lane: u32, key: u32, id: u32) -> Item {
    var best = Item(0u, NOTHING, 0u);
    for (var i = part * PART + lane; i < min((part + 1u) * PART, item_count()); i += LANES) {
        let bits = item_bits(row, i);
        let item = Item(key_of(bits), item_id(row, i), bits);
        let later = item.key < key || (item.key == key && item.id > id);
        if (later && (item.key > best.key || (item.key == best.key && item.id < best.id))) { best = item; }
    }
    return best;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    start();
    var own = best_after(group.z, group.x, lane, 0xffffffffu, 0u);
    for (var place = 0u; place < K; place += 1u) {
        if (lane == 0u) {
            atomicStore(&best_key, 0u);
            atomicStore(&best_id, NOTHING);
        }
        workgroupBarrier();
        atomicMax(&best_key, own.key);
        workgroupBarrier();
        let key = atomicLoad(&best_key);
        if (own.key == key) { atomicMin(&best_id, own.id); }
        workgroupBarrier();
        let id = atomicLoad(&best_id);
        if (id == NOTHING) {
            if (lane == 0u) { keep(group.z, group.x, place, Item(0u, NOTHING, 0u)); }
        } else if (own.id == id) {
            keep(group.z, group.x, place, own);
            own = best_after(group.z, group.x, lane, key, id);
        }
        workgroupBarrier();
    }
}
