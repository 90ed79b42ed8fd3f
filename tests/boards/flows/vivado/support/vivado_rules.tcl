# What Vivado asks of its commands, as far as the scripts use them: stub_check refuses an unknown command, an option that a
# command does not have, a missing or a wrong argument, and a wrong order. Source: AMD UG835 (2021.1) for the commands and
# their arguments, UG892 and UG904 for the order of a project's runs, UG994 for block designs.

# command {options} {positional arguments, least and most}. An option ends in =KIND if it takes a value, and begins with ! if
# the scripts need it. Kinds: any, file (with a folder), int, hex, and words from which to choose, with bars between.
array set stub_known {
    version {{-short} 0 0}
    create_project {{-force !-part=any} 2 2}
    open_project {{} 1 1}
    close_project {{} 0 0}
    current_project {{} 0 0}
    add_files {{-fileset=constrs_1 -norecurse} 1 1}
    current_fileset {{} 0 0}
    update_compile_order {{!-fileset=sources_1} 0 0}
    update_ip_catalog {{-rebuild} 0 0}
    set_property {{-dict=any} 1 3}
    get_property {{} 2 2}
    get_board_parts {{-quiet} 1 1}
    get_ipdefs {{!-filter=any} 0 0}
    get_files {{} 1 1}
    get_runs {{} 1 1}
    create_bd_design {{} 1 1}
    open_bd_design {{} 1 1}
    create_bd_cell {{!-type=ip !-vlnv=any} 1 1}
    apply_bd_automation {{!-rule=any !-config=any} 1 1}
    make_bd_intf_pins_external {{-name=any} 1 1}
    get_bd_cells {{} 1 1}
    get_bd_pins {{} 1 1}
    get_bd_intf_pins {{} 1 1}
    get_bd_addr_spaces {{} 1 1}
    get_bd_addr_segs {{-of_objects=any} 0 1}
    connect_bd_net {{} 2 2}
    connect_bd_intf_net {{} 2 2}
    assign_bd_address {{-offset=hex -range=int -target_address_space=any -force} 0 1}
    validate_bd_design {{} 0 0}
    save_bd_design {{} 0 0}
    make_wrapper {{!-files=any -top} 0 0}
    generate_target {{} 2 2}
    launch_runs {{-to_step=write_bitstream !-jobs=int} 1 1}
    wait_on_run {{} 1 1}
    reset_run {{} 1 1}
    open_run {{} 1 1}
    close_design {{} 0 0}
    report_timing_summary {{!-file=file} 0 0}
    report_utilization {{-hierarchical !-file=file} 0 0}
    report_power {{!-file=file} 0 0}
    get_timing_paths {{-delay_type=max|min -max_paths=int -nworst=int} 0 0}
    write_hw_platform {{-fixed -include_bit -force !-file=file} 0 0}
    ipx::package_project {{!-root_dir=file !-vendor=any !-library=any -taxonomy=any -import_files -force} 0 0}
    ipx::current_core {{} 0 0}
    ipx::get_bus_interfaces {{!-of_objects=any} 1 1}
    ipx::get_memory_maps {{!-of_objects=any} 1 1}
    ipx::add_memory_map {{} 2 2}
    ipx::get_address_blocks {{!-of_objects=any} 0 1}
    ipx::add_address_block {{} 2 2}
    ipx::get_address_spaces {{!-of_objects=any} 1 1}
    ipx::add_address_space {{} 2 2}
    ipx::get_user_parameters {{!-of_objects=any} 1 1}
    ipx::create_xgui_files {{} 1 1}
    ipx::update_checksums {{} 1 1}
    ipx::check_integrity {{} 1 1}
    ipx::save_core {{} 1 1}
}
# Properties that are set, with their kinds; CONFIG.* are those of IP, which its guide and not Vivado's describes.
array set stub_properties {
    top any  board_part any  ip_repo_paths any  USED_IN_SYNTHESIS true|false  synth_checkpoint_mode None|Singular|Hierarchical
    strategy any  STEPS.PHYS_OPT_DESIGN.IS_ENABLED true|false  STEPS.POST_ROUTE_PHYS_OPT_DESIGN.IS_ENABLED true|false
    vendor any  library any  name any  version any  display_name any  description any  supported_families any
    slave_memory_map_ref any  master_address_space_ref any  usage register|memory  range int  width int
    enablement_value true|false
}
set stub_strategies {
    {Vivado Synthesis Defaults} Flow_PerfOptimized_high Flow_AlternateRoutability Flow_AreaOptimized_high
    {Vivado Implementation Defaults} Performance_Explore Performance_ExplorePostRoutePhysOpt Performance_ExtraTimingOpt
    Congestion_SpreadLogic_high
}

# What was done: 1 if it holds. "synth_1" and "impl_1" are new, launched or ended.
array set stub_state {project 0 sources 0 packaged 0 integrity 0 design 0 valid 0 saved 0 wrapper 0 generated 0 \
    synth_1 new impl_1 new opened 0}

proc stub_kind {kind value} {
    switch $kind {
        any {return 1}
        int {return [string is wideinteger -strict $value]}
        hex {return [regexp {^0x[0-9a-f]+$} $value]}
        file {return [expr {[file pathtype $value] eq "absolute"}]}
    }
    return [expr {$value in [split $kind |]}]
}

proc stub_check {name arguments} {
    if {![info exists ::stub_known($name)]} {
        error "Vivado has no command $name that the stubs know"
    }
    lassign $::stub_known($name) options least most
    set needed {}
    foreach option $options {
        lassign [split [string trimleft $option !] =] word kind
        set kinds($word) $kind
        if {[string match !* $option]} {
            lappend needed $word
        }
    }
    set positional {}
    for {set at 0} {$at < [llength $arguments]} {incr at} {
        set word [lindex $arguments $at]
        if {![regexp {^-[a-z]} $word]} {
            lappend positional $word
            continue
        }
        if {![info exists kinds($word)]} {
            error "$name has no option $word"
        }
        lappend given $word
        if {$kinds($word) ne ""} {
            if {[incr at] >= [llength $arguments] || ![stub_kind $kinds($word) [lindex $arguments $at]]} {
                error "$name $word takes $kinds($word), not [lindex $arguments $at]"
            }
        }
    }
    foreach word $needed {
        if {![info exists given] || $word ni $given} {
            error "$name needs $word"
        }
    }
    if {[llength $positional] < $least || [llength $positional] > $most} {
        error "$name takes $least to $most arguments, not [llength $positional]"
    }
    if {$name eq "set_property"} {
        stub_check_property $arguments $positional
    }
    stub_check_order $name $arguments
}

proc stub_check_property {arguments positional} {
    if {[lindex $arguments 0] eq "-dict"} {
        set pairs [lindex $arguments 1]
        if {[llength $pairs] == 0 || [llength $pairs] % 2 || [llength $positional] != 1} {
            error "set_property -dict takes pairs and one object"
        }
    } elseif {[llength $positional] != 3} {
        error "set_property takes a name, a value and an object"
    } else {
        set pairs [lrange $positional 0 1]
    }
    foreach {property value} $pairs {
        if {[regexp {^CONFIG\.[A-Z][A-Za-z0-9_]*$} $property]} {
            continue
        }
        if {![info exists ::stub_properties($property)]} {
            error "set_property: no property $property"
        }
        if {![stub_kind $::stub_properties($property) $value]} {
            error "set_property $property takes $::stub_properties($property), not $value"
        }
        if {$property eq "strategy" && $value ni $::stub_strategies} {
            error "set_property strategy: no strategy $value"
        }
    }
}

proc stub_need {what condition} {
    if {![uplevel 1 [list expr $condition]]} {
        error "wrong order: $what"
    }
}

proc stub_check_order {name arguments} {
    upvar #0 stub_state state
    if {$name ni {version create_project open_project}} {
        stub_need "$name without a project" {$state(project)}
    }
    switch -glob $name {
        create_project - open_project {stub_need "$name before close_project" {!$state(project)}}
        ipx::package_project {stub_need "$name before add_files" {$state(sources)}}
        ipx::save_core {stub_need "$name before ipx::check_integrity" {$state(integrity)}}
        ipx::* {stub_need "$name before ipx::package_project" {$state(packaged)}}
        create_bd_design - open_bd_design {}
        *bd_* {stub_need "$name before create_bd_design or open_bd_design" {$state(design)}}
        make_wrapper {stub_need "$name before validate_bd_design and save_bd_design" {$state(valid) && $state(saved)}}
        generate_target {stub_need "$name before validate_bd_design and save_bd_design" {$state(valid) && $state(saved)}}
        launch_runs {
            set run [lindex $arguments 0]
            stub_need "$name $run, which was not reset" {$state($run) eq "new"}
            if {$run eq "synth_1"} {
                stub_need "$name synth_1 before add_files of the wrapper" {$state(wrapper) && $state(sources)}
                stub_need "$name synth_1 before generate_target" {$state(generated)}
            } else {
                stub_need "$name $run before the end of synth_1" {$state(synth_1) eq "ended"}
            }
        }
        wait_on_run {stub_need "$name before launch_runs" {$state([lindex $arguments 0]) eq "launched"}}
        open_run {stub_need "$name before the end of [lindex $arguments 0]" {$state([lindex $arguments 0]) eq "ended"}}
        reset_run {stub_need "$name before close_design" {!$state(opened)}}
        report_* - write_hw_platform - get_timing_paths - close_design {
            stub_need "$name before open_run" {$state(opened)}
        }
    }
    if {$name eq "save_bd_design"} {
        stub_need "$name before validate_bd_design" {$state(valid)}
    }
    if {$name eq "set_property" && [string match *strategy* [lindex $arguments 0]]} {
        stub_need "a strategy of a run that was not reset" {$state([lindex $arguments end]) eq "new"}
    }
}

# A project keeps what was done in it, for the next process.
proc stub_happened {name arguments} {
    upvar #0 stub_state state
    switch -glob $name {
        create_project {array set state {project 1 sources 0 packaged 0 integrity 0}}
        open_project {
            set file [open [file join $::stub_folder stub_state] r]
            array set state [read $file]
            close $file
            array set state {project 1 design 0 opened 0}
        }
        close_project {set state(project) 0}
        add_files {
            set state(sources) 1
            if {"wrapper.v" in [lindex $arguments end]} {
                set state(wrapper) 1
            }
        }
        ipx::package_project {set state(packaged) 1}
        ipx::check_integrity {set state(integrity) 1}
        create_bd_design - open_bd_design {set state(design) 1}
        create_bd_cell - apply_bd_automation - connect_bd_* - make_bd_* - assign_bd_address {
            array set state {valid 0 saved 0 generated 0}
        }
        validate_bd_design {set state(valid) 1}
        save_bd_design {set state(saved) 1}
        generate_target {set state(generated) 1}
        launch_runs {set state([lindex $arguments 0]) launched}
        wait_on_run {set state([lindex $arguments 0]) ended}
        reset_run {
            set state([lindex $arguments 0]) new
            if {[lindex $arguments 0] eq "synth_1"} {
                set state(impl_1) new
            }
        }
        open_run {
            set state(opened) 1
            incr ::stub_opened
        }
        close_design {set state(opened) 0}
    }
    if {$name eq "set_property" && [string match *CONFIG.* $arguments]} {
        array set state {valid 0 saved 0 generated 0}
    }
    if {$state(project) && [info exists ::stub_folder]} {
        stub_write [file join $::stub_folder stub_state] [array get state]
    }
}
